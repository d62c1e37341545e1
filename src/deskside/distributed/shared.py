"""Ranks as processes of one machine, over memory that they share.

A rank writes its part once and the others read it where it lies. Owns the layout of that memory and
the rule by which a place is written again: an exchange uses the places that the last but one used,
when all have begun the last one. The memory has no name in any folder and goes with its last user.
"""

import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from deskside.distributed.group import LEADER, Traffic
from deskside.distributed.trace import Trace
from deskside.errors import LostRankError

__all__ = ["Exchange", "Room", "SharedGroup"]

LINE = 64
"""Bytes between words, so that no two share a cache line; parts in a place begin at such bounds."""
PLACE = 1 << 20
"""Bytes of a part that go at once."""
LENGTH = 8
"""Bytes in front of a record that hold its length."""
SPIN = 500e-6
"""Seconds of waiting without giving up the core: an exchange on free cores takes a few
microseconds, what a leader does alone between two steps a few hundred."""
GLANCE = 0.5
"""Seconds after which a rank that waits looks whether the others are still there."""
FOREVER = float("inf")
WRAP = 1 << 32
"""Counts in shared memory are taken modulo this."""
REMEMBERED = 256
"""Shapes of parts whose places are kept as tensors."""


class Exchange(Protocol):
    """Writes a rank's parts into shared memory and waits for others', in one call."""

    def __call__(
        self,
        memory: int,
        line: int,
        place: int,
        ranks: int,
        rank: int,
        turn: int,
        parts: list[int],
        writes: bool,
        first: int,
        last: int,
        spin: float,
        seconds: float,
        /,
    ) -> bool:
        """Take part in exchange number `turn`.

        Args:
            memory: where a room lies, zeros at first; `line` and `place` are its measures.
            line: bytes between words.
            place: bytes of a place.
            ranks: how many have places in it.
            rank: which one calls.
            turn: the number of the exchange, from 1 on.
            parts: address, bytes, and where in the place, of every part.
            writes: whether this rank's parts are wanted.
            first: the first rank whose parts are waited for.
            last: the one behind the last.
            spin: seconds of a wait without giving up the core.
            seconds: of a wait in all.

        Returns:
            False when the seconds are over; the same call goes on waiting.
        """
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

    def begun(self, rank: int) -> int:
        """Return the number of the exchange that a rank has begun last."""
        start = rank * 2 * LINE + LINE
        return int(self.memory[start : start + 4].view(torch.int32).item()) % WRAP

    def place(self, rank: int, turn: int) -> Tensor:
        """Return a rank's place for an exchange."""
        start = self.ranks * 2 * LINE + (2 * rank + turn % 2) * PLACE
        return self.memory[start : start + PLACE]


@dataclass(frozen=True, slots=True)
class _Seat:
    """Where parts of certain shapes lie in the places of one turn."""

    offsets: tuple[int, ...]
    size: int
    """Bytes in a place."""
    views: list[list[Tensor]]
    """Of every part, the wanted ranks' tensors; none where a place is too small."""


class SharedGroup:
    """One rank's side of a group on one machine."""

    def __init__(
        self,
        room: Room,
        rank: int,
        exchange: Exchange,
        seconds: float,
        trace: Trace | None = None,
        lost: Callable[[Sequence[int]], None] = lambda _behind: None,
    ) -> None:
        """Take a place in the room.

        Args:
            room: of all ranks.
            rank: this one's number.
            exchange: how to post and wait.
            seconds: after which a rank that does not answer counts as lost.
            trace: where to write what this rank does.
            lost: is called now and then while this rank waits, with nobody, and with the ranks
                that are behind when the seconds are over; raises when a rank is gone.
        """
        self.rank, self.ranks = rank, room.ranks
        self.traffic = Traffic()
        self._room = room
        self._memory = room.memory.data_ptr()
        self._exchange = exchange
        self._seconds = seconds
        self._trace = trace
        self._lost = lost
        self._spin = 0.0
        self._turn = 0
        self._calls = 0
        self._seats: dict[object, _Seat] = {}
        self._record = torch.empty(PLACE, dtype=torch.uint8)
        self._written = self._record.numpy().data
        self._told = [room.place(LEADER, turn).numpy().data for turn in (0, 1)]

    def settle(self, seconds: float, *, spin: bool) -> None:
        """From now on a rank that does not answer for this long counts as lost."""
        self._seconds = seconds
        self._spin = SPIN if spin else 0.0

    def enter(self, doing: str) -> None:
        """Note what this rank is about to do."""
        self._calls = 0
        if self._trace is not None:
            self._trace.enter(self.rank, doing)

    def gather(self, *parts: Tensor) -> Sequence[Sequence[Tensor]]:
        """Return every part of all ranks, by rank, where they lie."""
        self._note(sum(part.nbytes for part in parts))
        found = self._exchanged(parts, True, 0, self.ranks)
        self._over()
        return found

    def collect(self, part: Tensor) -> Sequence[Tensor]:
        """Return the parts of all ranks to the leader, and nothing to others."""
        if self.rank != LEADER:
            self._note(part.nbytes)
            self._exchanged((part,), True, 0, 0)
            self._over()
            return ()
        self._note(0)
        (others,) = self._exchanged((part,), False, 1, self.ranks)
        self._over()
        return [part, *others]

    def share(self, numbers: Tensor) -> Tensor:
        """Return the leader's tensor."""
        leads = self.rank == LEADER
        self._note(numbers.nbytes if leads else 0)
        ((found,),) = self._exchanged((numbers,), leads, LEADER, LEADER + 1)
        self._over()
        return found.clone()

    def tell(self, record: bytes | None) -> bytes:
        """Return the leader's record; wait for as long as it has nothing to say."""
        if record is not None:
            self._note(LENGTH + len(record))
            whole = len(record).to_bytes(LENGTH, "little") + record
            for first in range(0, len(whole), PLACE):
                piece = whole[first : first + PLACE]
                self._written[: len(piece)] = piece
                self._pass([self._record.data_ptr(), len(piece), 0], True, 0, 0, self._seconds)
            self._over()
            return record
        self._note(0)
        piece = self._heard(LENGTH)
        length = int.from_bytes(piece, "little")
        told = self._told[self._turn % 2][LENGTH : LENGTH + length].tobytes()
        while len(told) < length:
            told += self._heard(length - len(told))
        self._over()
        return told

    def _heard(self, count: int) -> bytes:
        """Return the first bytes of what the leader writes next."""
        self._pass([], False, LEADER, LEADER + 1, FOREVER)
        return self._told[self._turn % 2][:count].tobytes()

    def _exchanged(
        self, parts: Sequence[Tensor], writes: bool, first: int, last: int
    ) -> list[list[Tensor]]:
        """Let ranks write parts of the same shapes; return those of some ranks, part by part."""
        seat = self._seat(parts, first, last)
        if seat.size > PLACE:
            return [self._in_pieces(part, writes, first, last) for part in parts]
        listed: list[int] = []
        for part, offset in zip(parts, seat.offsets, strict=True):
            assert part.is_contiguous()
            listed += (part.data_ptr(), part.nbytes, offset)
        self._pass(listed, writes, first, last, self._seconds)
        return seat.views

    def _in_pieces(self, part: Tensor, writes: bool, first: int, last: int) -> list[Tensor]:
        """Exchange a part that is larger than a place."""
        assert part.is_contiguous()
        whole = [torch.empty_like(part) for _ in range(first, last)]
        for start in range(0, part.nbytes, PLACE):
            count = min(PLACE, part.nbytes - start)
            self._pass([part.data_ptr() + start, count, 0], writes, first, last, self._seconds)
            for rank, one in zip(range(first, last), whole, strict=True):
                place = self._room.place(rank, self._turn)[:count]
                one.view(-1).view(torch.uint8)[start : start + count] = place
        return whole

    def _seat(self, parts: Sequence[Tensor], first: int, last: int) -> _Seat:
        """Return where parts of the next exchange lie."""
        turn = self._turn + 1
        key = (turn % 2, first, last, *[(part.dtype, part.shape) for part in parts])
        found = self._seats.get(key)
        if found is None:
            if len(self._seats) >= REMEMBERED:
                self._seats.clear()
            found = self._seats[key] = self._seated(parts, turn, range(first, last))
        return found

    def _seated(self, parts: Sequence[Tensor], turn: int, wanted: Sequence[int]) -> _Seat:
        offsets, size = [], 0
        for part in parts:
            offsets.append(size)
            size += -(-part.nbytes // LINE) * LINE
        if size > PLACE:
            return _Seat(tuple(offsets), size, [])
        places = [self._room.place(rank, turn) for rank in wanted]
        views = [
            [
                place[offset : offset + part.nbytes].view(part.dtype).view(part.shape)
                for place in places
            ]
            for part, offset in zip(parts, offsets, strict=True)
        ]
        return _Seat(tuple(offsets), size, views)

    def _pass(self, parts: list[int], writes: bool, first: int, last: int, seconds: float) -> None:
        """Exchange what fits one place; what others wrote lies there until the next but one."""
        self._turn += 1
        if not self._tried(parts, writes, first, last, self._spin, min(GLANCE, seconds)):
            self._wait(lambda: self._tried(parts, writes, first, last, 0.0, GLANCE), seconds)

    def _tried(
        self, parts: list[int], writes: bool, first: int, last: int, spin: float, seconds: float
    ) -> bool:
        return self._exchange(
            self._memory,
            LINE,
            PLACE,
            self.ranks,
            self.rank,
            self._turn,
            parts,
            writes,
            first,
            last,
            spin,
            seconds,
        )

    def _wait(self, tried: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            self._lost(self._behind() if time.monotonic() > end else ())
            if tried():
                return
            if time.monotonic() > end + GLANCE:
                raise LostRankError(f"rank {self.rank} waits for another one in vain")

    def _behind(self) -> list[int]:
        """Return the ranks that have not begun this exchange."""
        turns = [self._room.begun(rank) for rank in range(self.ranks)]
        return [rank for rank, turn in enumerate(turns) if (turn - self._turn) % WRAP > WRAP // 2]

    def _note(self, nbytes: int) -> None:
        self.traffic.add(nbytes)
        self._calls += 1
        if self._trace is not None:
            self._trace.call(self.rank, self._calls)

    def _over(self) -> None:
        if self._trace is not None:
            self._trace.call(self.rank, 0)
