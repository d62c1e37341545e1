"""Ranks as processes of one machine, over memory that they share.

A rank writes its part once and the others read it where it lies. Owns the layout of that memory and
the rule by which a place is written again: an exchange uses the places that the last but one used,
when all have begun the last one. The memory has no name in any folder and goes with its last user.
"""

import mmap
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from deskside.distributed.group import LEADER, Traffic
from deskside.distributed.trace import Trace
from deskside.errors import LostRankError

__all__ = ["Room", "SharedGroup", "Signals"]

LINE = 64
"""Bytes between words, so that no two share a cache line."""
PLACE = 1 << 20
"""Bytes of a part that go at once."""
LENGTH = 8
"""Bytes in front of a record that hold its length."""
SPIN = 200e-6
"""Seconds of waiting without giving up the core; an exchange on free cores takes a few tens."""
GLANCE = 0.5
"""Seconds after which a rank that waits looks whether the others are still there."""
FOREVER = float("inf")


class Signals(Protocol):
    """Counts in shared memory; a word has 8 bytes, zeros at first."""

    def post(self, word: int, count: int) -> None:
        """Set a count at an address and wake who waits for it."""
        ...

    def wait(self, word: int, least: int, spin: float, seconds: float) -> bool:
        """Wait until a count is reached; false when the seconds are over."""
        ...


@dataclass(frozen=True, slots=True)
class Room:
    """Shared memory of a group: for every rank two words, then two places."""

    memory: Tensor
    ranks: int

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

    def written(self, rank: int) -> int:
        """Return the address of the count of exchanges that a rank has written."""
        return self.memory.data_ptr() + 2 * LINE * rank

    def begun(self, rank: int) -> int:
        """Return the address of the count of exchanges that a rank has begun."""
        return self.written(rank) + LINE

    def place(self, rank: int, turn: int, nbytes: int) -> Tensor:
        """Return a rank's place for an exchange."""
        start = self.ranks * 2 * LINE + (2 * rank + turn % 2) * PLACE
        return self.memory[start : start + nbytes]


class SharedGroup:
    """One rank's side of a group on one machine."""

    def __init__(
        self,
        room: Room,
        rank: int,
        signals: Signals,
        seconds: float,
        trace: Trace | None = None,
        lost: Callable[[bool], None] = lambda _late: None,
    ) -> None:
        """Take a place in the room.

        Args:
            room: of all ranks.
            rank: this one's number.
            signals: how to post and wait.
            seconds: after which a rank that does not answer counts as lost.
            trace: where to write what this rank does.
            lost: is called now and then while this rank waits, and with True when the seconds are
                over; raises when a rank is gone.
        """
        self.rank, self.ranks = rank, room.ranks
        self.traffic = Traffic()
        self._room = room
        self._signals = signals
        self._seconds = seconds
        self._trace = trace
        self._lost = lost
        self._spin = 0.0
        self._turn = 0
        self._calls = 0

    def settle(self, seconds: float, *, spin: bool) -> None:
        """From now on a rank that does not answer for this long counts as lost."""
        self._seconds = seconds
        self._spin = SPIN if spin else 0.0

    def enter(self, doing: str) -> None:
        """Note what this rank is about to do."""
        self._calls = 0
        if self._trace is not None:
            self._trace.enter(self.rank, doing)

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        """Return the parts of all ranks, by rank, where they lie."""
        self._note(part.nbytes)
        everybody = range(self.ranks)
        return self._done(self._exchanged(part, everybody, everybody))

    def collect(self, part: Tensor) -> Sequence[Tensor]:
        """Return the parts of all ranks to the leader, and nothing to others."""
        leads = self.rank == LEADER
        self._note(0 if leads else part.nbytes)
        others = range(1, self.ranks)
        found = self._exchanged(part, others, others if leads else ())
        return self._done([part, *found] if leads else [])

    def share(self, numbers: Tensor) -> Tensor:
        """Return the leader's tensor."""
        self._note(numbers.nbytes if self.rank == LEADER else 0)
        (found,) = self._exchanged(numbers, (LEADER,), (LEADER,))
        return self._done([found.clone()])[0]

    def tell(self, record: bytes | None) -> bytes:
        """Return the leader's record; wait for as long as it has nothing to say."""
        if record is not None:
            self._note(LENGTH + len(record))
            whole = len(record).to_bytes(LENGTH, "little") + record
            for first in range(0, len(whole), PLACE):
                piece = torch.frombuffer(bytearray(whole[first : first + PLACE]), dtype=torch.uint8)
                self._piece(piece, (LEADER,), (), self._seconds)
            self._done([])
            return record
        self._note(0)
        found = self._told()
        length = int.from_bytes(found[:LENGTH].numpy().tobytes(), "little") + LENGTH
        told = found[:length].numpy().tobytes()
        while len(told) < length:
            told += self._told()[: length - len(told)].numpy().tobytes()
        self._done([])
        return told[LENGTH:]

    def _told(self) -> Tensor:
        """Return the leader's place, once it has written there."""
        nothing = self._room.place(self.rank, 0, PLACE)  # only its size counts
        (found,) = self._piece(nothing, (LEADER,), (LEADER,), FOREVER)
        return found

    def _exchanged(
        self, part: Tensor, writers: Iterable[int], wanted: Sequence[int]
    ) -> list[Tensor]:
        """Let ranks write parts of one shape; return those that are wanted."""
        assert part.is_contiguous()
        own = part.view(-1).view(torch.uint8)
        if own.nbytes <= PLACE:
            found = self._piece(own, writers, wanted, self._seconds)
            return [one.view(part.dtype).view(part.shape) for one in found]
        whole = [torch.empty_like(part) for _ in wanted]
        for first in range(0, own.nbytes, PLACE):
            piece = own[first : first + PLACE]
            found = self._piece(piece, writers, wanted, self._seconds)
            for place, one in zip(whole, found, strict=True):
                place.view(-1).view(torch.uint8)[first : first + PLACE] = one
        return whole

    def _piece(
        self, own: Tensor, writers: Iterable[int], wanted: Sequence[int], seconds: float
    ) -> list[Tensor]:
        """Exchange what fits one place; what is returned lies there until the next but one."""
        room, turn = self._room, self._turn + 1
        self._turn = turn
        self._signals.post(room.begun(self.rank), turn)
        if self.rank in writers:
            for rank in range(self.ranks):
                self._wait(room.begun(rank), turn - 1, seconds)
            room.place(self.rank, turn, own.nbytes).copy_(own)
            self._signals.post(room.written(self.rank), turn)
        for rank in wanted:
            self._wait(room.written(rank), turn, seconds)
        return [room.place(rank, turn, own.nbytes) for rank in wanted]

    def _wait(self, word: int, least: int, seconds: float) -> None:
        signals, spin = self._signals, self._spin
        if signals.wait(word, least, spin, min(GLANCE, seconds)):
            return
        end = time.monotonic() + seconds
        while True:
            self._lost(time.monotonic() > end)
            if signals.wait(word, least, 0.0, GLANCE):
                return
            if time.monotonic() > end + GLANCE:
                raise LostRankError(f"rank {self.rank} waits for another one in vain")

    def _note(self, nbytes: int) -> None:
        self.traffic.add(nbytes)
        self._calls += 1
        if self._trace is not None:
            self._trace.call(self.rank, self._calls)

    def _done(self, found: list[Tensor]) -> list[Tensor]:
        if self._trace is not None:
            self._trace.call(self.rank, 0)
        return found
