"""Copies of rings at page borders, in host memory.

A ring holds the rows before a frontier; a sequence that is to go on from an earlier page border
needs the rows before that one. Each place holds one such copy of every group of rings whose rows
are read past a border. Which sequence and border a place belongs to is not known here.
"""

from collections.abc import Sequence

import torch

from deskside.core import Span
from deskside.layout.kv import PAGE
from deskside.state.rings import RingGroup, Staged

__all__ = ["Snapshots"]


class Snapshots:
    """Places for copies of all rings of one slot."""

    def __init__(self, places: int, groups: Sequence[RingGroup]) -> None:
        """Allocate; memory that was never written takes no room yet."""
        self._groups = tuple(group for group in groups if group.crosses)
        assert all(PAGE % group.length == 0 for group in self._groups)
        self._copies = tuple(
            torch.empty(
                (places, group.storage.shape[0], group.crosses, group.storage.shape[3]),
                dtype=group.storage.dtype,
            )
            for group in self._groups
        )

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(copy.nbytes for copy in self._copies)

    def take(self, place: int, slot: int, span: Span, border: int, staged: Staged) -> None:
        """Copy the rows before a border inside of a span, before the span's rows enter the rings.

        Rows before the span are still in the rings; its own are in staging.
        """
        for group, copies in zip(self._groups, self._copies, strict=True):
            first = border - group.crosses
            own = max(first, span.start)
            older = own - first
            ring = group.storage[:, slot, group.length - group.crosses :]
            copies[place, :, :older] = ring[:, :older]
            source = staged.place(group.length, own, border)
            copies[place, :, older:] = group.staging[:, source : source + border - own]

    def restore(self, place: int, slot: int) -> None:
        """Fill the rings of a slot."""
        for group, copies in zip(self._groups, self._copies, strict=True):
            group.storage[:, slot, group.length - group.crosses :] = copies[place]
