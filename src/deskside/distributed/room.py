"""Memory that ranks of one machine share, and where in it parts of an exchange lie.

For every rank the memory holds two words, how many exchanges it has written and how many it has
begun, then for every rank two places, used in turn. It has no name in any folder and goes with its
last user.
"""

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["LINE", "PLACE", "Layout", "Room", "Seat", "TakeSeat", "padded"]

LINE = 64
"""Bytes between words, so that no two share a cache line; parts in a place begin at such bounds."""
PLACE = 1 << 20
"""Bytes of a part that go at once."""
WRAP = 1 << 32
"""Counts in shared memory are taken modulo this."""
REMEMBERED = 256
"""Layouts that are kept with their tensors."""


class Seat(Protocol):
    """How one rank exchanges in a room, each time in one call.

    Every method takes part in exchange number `turn`, from 1 on, waits at most `seconds`, the first
    `spin` of them without giving up the core, and returns False when they are over: the same call
    goes on waiting.
    """

    def exchange(
        self,
        turn: int,
        parts: list[int],
        writes: bool,
        first: int,
        last: int,
        spin: float,
        seconds: float,
        /,
    ) -> bool:
        """Write parts and wait for others'.

        Args:
            turn: as above.
            parts: address, bytes, and where in the place, of every part.
            writes: whether this rank's parts are wanted.
            first: the first rank whose parts are waited for.
            last: the one behind the last.
            spin: as above.
            seconds: as above.
        """
        ...

    def total(self, turn: int, terms: list[int], spin: float, seconds: float, /) -> bool:
        """Add parts of all ranks with the bits of `pairwise_sum`.

        Args:
            turn: as above.
            terms: address, bytes, where in the place, address of the sum, and bytes of a number, 4
                for float32 and 8 for int64, of every part.
            spin: as above.
            seconds: as above.
        """
        ...


class TakeSeat(Protocol):
    """How a rank comes to exchange in a room."""

    def __call__(self, room: "Room", rank: int, /) -> Seat:
        """Take a rank's seat; the room outlives it."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """Where parts of certain shapes lie in the places of one turn."""

    extents: tuple[tuple[int, int], ...]
    """Bytes of every part, and where in a place it begins."""
    nbytes: int
    """Of all parts."""
    fits: bool
    """Whether they fit a place."""
    views: list[list[Tensor]]
    """Of every part, the wanted ranks' tensors; none where a place is too small."""


@dataclass(frozen=True, slots=True)
class Room:
    """Shared memory of a group, zeros at first."""

    memory: Tensor
    ranks: int
    _layouts: dict[object, Layout] = field(default_factory=dict, repr=False)

    @staticmethod
    def size(ranks: int) -> int:
        """Bytes for a number of ranks."""
        return ranks * (2 * LINE + 2 * PLACE)

    @staticmethod
    def create(ranks: int) -> int:
        """Make the memory; return its file descriptor, for children to inherit."""
        descriptor = os.memfd_create("deskside")
        os.truncate(descriptor, Room.size(ranks))
        return descriptor

    @staticmethod
    def open(descriptor: int, ranks: int) -> "Room":
        """Map the memory of a descriptor, which may be closed then."""
        room = mmap.mmap(descriptor, Room.size(ranks))
        return Room(torch.frombuffer(room, dtype=torch.uint8), ranks)

    def place(self, rank: int, turn: int) -> Tensor:
        """Return a rank's place for an exchange."""
        start = self.ranks * 2 * LINE + (2 * rank + turn % 2) * PLACE
        return self.memory[start : start + PLACE]

    def behind(self, turn: int) -> list[int]:
        """Return the ranks that have not begun an exchange."""
        begun = (self._begun(rank) for rank in range(self.ranks))
        return [rank for rank, seen in enumerate(begun) if (seen - turn) % WRAP > WRAP // 2]

    def _begun(self, rank: int) -> int:
        """Return the number of the exchange that a rank has begun last."""
        start = rank * 2 * LINE + LINE
        return int(self.memory[start : start + 4].view(torch.int32).item()) % WRAP

    def layout(self, parts: Sequence[Tensor], turn: int, first: int, last: int) -> Layout:
        """Return where parts like these lie, and those of ranks from `first` to before `last`."""
        key = (turn & 1, first, last, *[(part.shape, part.dtype) for part in parts])
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= REMEMBERED:
                self._layouts.clear()
            found = self._layouts[key] = self._laid(parts, turn, range(first, last))
        return found

    def _laid(self, parts: Sequence[Tensor], turn: int, wanted: Sequence[int]) -> Layout:
        extents, size = [], 0
        for part in parts:
            extents.append((part.nbytes, size))
            size += padded(part.nbytes)
        nbytes = sum(count for count, _ in extents)
        if size > PLACE:
            return Layout(tuple(extents), nbytes, fits=False, views=[])
        places = [self.place(rank, turn) for rank in wanted]
        views = [
            [place[at : at + count].view(part.dtype).view(part.shape) for place in places]
            for part, (count, at) in zip(parts, extents, strict=True)
        ]
        return Layout(tuple(extents), nbytes, fits=True, views=views)


def padded(nbytes: int) -> int:
    """Return the bytes that a part takes in a place."""
    return -(-nbytes // LINE) * LINE
