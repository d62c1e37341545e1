"""Rings of recent rows and the staging buffers that feed them.

A ring keeps the last rows of every sequence at position modulo length. A forward never writes
rings: it leaves its rows in staging, and a commit scatters the kept ones. One group holds the rings
of all layers that keep rows of one width, so that a commit is one copy a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.core import SequenceId, Span
from deskside.errors import CapacityError
from deskside.layout.kv import MOST_PROPOSALS, staged_rows

__all__ = ["RingGroup", "Rings", "staged"]


def staged(span: Span, length: int) -> int:
    """Return how many of a span's last rows a ring of this length needs in staging."""
    return min(span.rows, staged_rows(length))


@dataclass(frozen=True, slots=True)
class RingGroup:
    """Rings of one length and width for several layers."""

    storage: Tensor
    """[layers, slots, length, width]."""
    staging: Tensor
    """[layers, slots * staged rows of the length, width]."""

    @property
    def length(self) -> int:
        """Rows of one ring."""
        return self.storage.shape[2]

    @staticmethod
    def allocate(
        layers: int, slots: int, length: int, width: int, dtype: torch.dtype
    ) -> "RingGroup":
        """Return empty rings; rows are only ever read at positions that were committed."""
        rows = slots * staged_rows(length)
        return RingGroup(
            storage=torch.zeros(layers, slots, length, width, dtype=dtype),
            staging=torch.zeros(layers, rows, width, dtype=dtype),
        )


class Rings:
    """Owner of the ring slots and of what the rings hold."""

    def __init__(self, slots: int, groups: Sequence[RingGroup]) -> None:
        self._groups = tuple(groups)
        self._rings = [group.storage.unbind(1) for group in self._groups]
        self._lengths = tuple(sorted({group.length for group in groups}))
        self._free = list(range(slots - 1, -1, -1))
        self._slots: dict[SequenceId, int] = {}
        self._places: dict[SequenceId, dict[int, int]] = {}
        self._staged = dict.fromkeys(self._lengths, 0)

    @property
    def free(self) -> int:
        """Slots that no sequence holds."""
        return len(self._free)

    def slot(self, sequence: SequenceId) -> int:
        """Return the ring slot of a sequence that reserved."""
        return self._slots[sequence]

    def held(self, sequence: SequenceId) -> int | None:
        """Return the ring slot of a sequence, or None where it has none."""
        return self._slots.get(sequence)

    def reserve(self, span: Span) -> None:
        """Give the sequence a slot, and its rows the next place in every staging buffer.

        Raises:
            CapacityError: every slot is taken.
        """
        assert span.proposals <= MOST_PROPOSALS
        assert span.sequence not in self._places, "a sequence has one span at a time"
        if span.sequence not in self._slots:
            if not self._free:
                have = len(self._slots)
                raise CapacityError(
                    f"every ring slot is taken: need {have + 1}, have {have}; raise --max-running"
                )
            self._slots[span.sequence] = self._free.pop()
        self._places[span.sequence] = dict(self._staged)
        for length in self._lengths:
            self._staged[length] += staged(span, length)

    def commit(self, span: Span, kept: int) -> None:
        """Scatter the kept rows from staging into the rings."""
        places = self._places.pop(span.sequence)
        if kept:
            slot = self._slots[span.sequence]
            runs = {length: _runs(span, kept, length, places[length]) for length in self._lengths}
            for group, rings in zip(self._groups, self._rings, strict=True):
                for at, source, count in runs[group.length]:
                    rows = rings[slot].narrow(1, at, count)
                    rows.copy_(group.staging.narrow(1, source, count))
        if not self._places:
            self._staged = dict.fromkeys(self._lengths, 0)
        if span.start + kept == 0:
            self.release(span.sequence)

    def release(self, sequence: SequenceId) -> None:
        """Return the slot; rows of it are never read again."""
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            self._free.append(slot)


def _runs(span: Span, kept: int, length: int, place: int) -> list[tuple[int, int, int]]:
    """Where the last kept rows go in a ring and stand in staging, and how many; at most two."""
    runs = []
    end = span.start + kept
    first = max(span.start, end - length)
    source = place + first - (span.end - staged(span, length))
    while first < end:
        at = first % length
        count = min(end - first, length - at)
        runs.append((at, source, count))
        first, source = first + count, source + count
    return runs
