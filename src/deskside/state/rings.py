"""Rings of recent rows and the staging buffers that feed them.

A ring keeps the last rows of every sequence at position modulo length. A forward never writes
rings: it leaves its rows in staging, and a commit scatters the kept ones. One group holds the rings
of all layers that keep rows of one width, so that a commit is one copy a group. A commit that
passes a page border may copy the rings as they are there, for sequences that begin alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from deskside.core import SequenceId, Span
from deskside.errors import CapacityError
from deskside.layout.kv import BORDERS, MOST_PROPOSALS, staged_rows

__all__ = ["Borders", "Copies", "RingGroup", "Rings", "Staged", "before", "staged"]


def staged(span: Span, length: int) -> int:
    """Return how many of a span's last rows a ring of this length needs in staging."""
    return min(span.rows, staged_rows(length))


def before(span: Span, border: int, length: int) -> range:
    """Return the span's positions before a page border that staging needs besides the last rows."""
    first = max(span.start, border - length)
    return range(first, border if first < span.end - staged(span, length) else first)


@dataclass(frozen=True, slots=True)
class Staged:
    """Where the rows of one reserved span lie in every staging buffer."""

    span: Span
    borders: tuple[int, ...]
    """Page borders before which rows are staged too."""
    bases: Mapping[int, int]
    """By ring length: where the span's places begin."""

    def rows(self, length: int) -> list[range]:
        """Return the positions of the staged rows in the order of their places."""
        span = self.span
        parts = [range(span.end - staged(span, length), span.end)]
        return parts + [before(span, border, length) for border in self.borders]

    def place(self, length: int, first: int, end: int) -> int:
        """Return the place of the row at a position, behind which those up to `end` follow."""
        base = self.bases[length]
        for part in self.rows(length):
            if first in part and end <= part.stop:
                return base + first - part.start
            base += len(part)
        raise AssertionError("a row that was not staged")


class Borders(Protocol):
    """Says which page borders get a copy of the rings, and where it goes."""

    def wanted(self, span: Span) -> tuple[int, ...]:
        """Return the borders in and at the end of a span."""
        ...

    def place(self, sequence: SequenceId, border: int) -> int | None:
        """Return where the rings at a border that stays are to be copied; None keeps nothing."""
        ...


class Copies(Protocol):
    """Holds copies of rings."""

    def take(self, place: int, slot: int, span: Span, border: int, staged: Staged) -> None:
        """Copy a slot's rings as they are at a border inside of a span."""
        ...

    def restore(self, place: int, slot: int) -> None:
        """Fill a slot's rings."""
        ...


@dataclass(frozen=True, slots=True)
class RingGroup:
    """Rings of one length and width for several layers."""

    storage: Tensor
    """[layers, slots, length, width]."""
    staging: Tensor
    """[layers, slots * staged rows of the length and those before page borders, width]."""
    crosses: int
    """Last rows that are read past a page border."""

    @property
    def length(self) -> int:
        """Rows of one ring."""
        return self.storage.shape[2]

    @staticmethod
    def allocate(
        layers: int,
        slots: int,
        length: int,
        width: int,
        dtype: torch.dtype,
        *,
        borders: int = 0,
        crosses: int | None = None,
    ) -> "RingGroup":
        """Return empty rings; rows are only ever read at positions that were committed.

        `borders` is how many page borders of a step are staged, and `crosses` how many rows of a
        ring are read past one: without it all.
        """
        rows = slots * staged_rows(length) + borders * length
        return RingGroup(
            storage=torch.zeros(layers, slots, length, width, dtype=dtype),
            staging=torch.zeros(layers, rows, width, dtype=dtype),
            crosses=length if crosses is None else crosses,
        )


class Rings:
    """Owner of the ring slots and of what the rings hold."""

    def __init__(
        self,
        slots: int,
        groups: Sequence[RingGroup],
        borders: Borders | None = None,
        copies: Copies | None = None,
    ) -> None:
        """Own the slots; with `borders`, rings are copied where those say."""
        self._groups = tuple(groups)
        self._rings = [group.storage.unbind(1) for group in self._groups]
        self._borders = borders
        self._copies = copies
        self._lengths = tuple(sorted({group.length for group in groups}))
        self._free = list(range(slots - 1, -1, -1))
        self._slots: dict[SequenceId, int] = {}
        self._places: dict[SequenceId, Staged] = {}
        self._staged = dict.fromkeys(self._lengths, 0)
        self._spare = BORDERS

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

    def staged(self, sequence: SequenceId) -> Staged:
        """Return where the reserved span's rows are to be staged."""
        return self._places[sequence]

    def resume(self, sequence: SequenceId, place: int) -> None:
        """Give a sequence that enters a slot, its rings filled from a copy.

        Raises:
            CapacityError: every slot is taken.
        """
        assert self._copies is not None
        self._copies.restore(place, self._take(sequence))

    def reserve(self, span: Span) -> None:
        """Give the sequence a slot, and its rows the next place in every staging buffer.

        Raises:
            CapacityError: every slot is taken.
        """
        assert span.proposals <= MOST_PROPOSALS
        assert span.sequence not in self._places, "a sequence has one span at a time"
        if span.sequence not in self._slots:
            self._take(span.sequence)
        place = Staged(span, self._chosen(span), dict(self._staged))
        self._places[span.sequence] = place
        for length in self._lengths:
            self._staged[length] += sum(map(len, place.rows(length)))

    def commit(self, span: Span, kept: int) -> None:
        """Scatter the kept rows from staging into the rings, and copy those at borders before."""
        staged = self._places.pop(span.sequence)
        slot = self._slots[span.sequence]
        for border in staged.borders:
            if border <= span.start + kept:
                self._copy(slot, border, staged)
        if kept:
            bases = staged.bases
            runs = {length: _runs(span, kept, length, bases[length]) for length in self._lengths}
            for group, rings in zip(self._groups, self._rings, strict=True):
                for at, source, count in runs[group.length]:
                    rows = rings[slot].narrow(1, at, count)
                    rows.copy_(group.staging.narrow(1, source, count))
        if not self._places:
            self._staged = dict.fromkeys(self._lengths, 0)
            self._spare = BORDERS
        if span.start + kept == 0:
            self.release(span.sequence)

    def release(self, sequence: SequenceId) -> None:
        """Return the slot; rows of it are never read again."""
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            self._free.append(slot)

    def _take(self, sequence: SequenceId) -> int:
        if not self._free:
            have = len(self._slots)
            raise CapacityError(
                f"every ring slot is taken: need {have + 1}, have {have}; raise --max-running"
            )
        self._slots[sequence] = self._free.pop()
        return self._slots[sequence]

    def _chosen(self, span: Span) -> tuple[int, ...]:
        """Return the wanted borders, as far as staging has room for rows before the last ones."""
        chosen = []
        for border in self._borders.wanted(span) if self._borders else ():
            longer = any(before(span, border, length) for length in self._lengths)
            if self._spare or not longer:
                self._spare -= longer
                chosen.append(border)
        return tuple(chosen)

    def _copy(self, slot: int, border: int, staged: Staged) -> None:
        if self._borders is None or self._copies is None:
            return
        place = self._borders.place(staged.span.sequence, border)
        if place is not None:
            self._copies.take(place, slot, staged.span, border, staged)


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
