"""Ranks as processes of one machine, over memory that they share.

A rank writes its part once and the others read it where it lies. Owns the rule by which a place is
written again: an exchange uses the places that the last but one used, when all have begun the last
one.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from deskside.distributed.group import LEADER, Traffic
from deskside.distributed.room import PLACE, Room, TakeSeat, padded
from deskside.distributed.trace import Trace
from deskside.errors import LostRankError

__all__ = ["SharedGroup"]

LENGTH = 8
"""Bytes in front of a record that hold its length."""
SPIN = 500e-6
"""Seconds of waiting without giving up the core: an exchange on free cores takes a few
microseconds, what a leader does alone between two steps a few hundred."""
GLANCE = 0.5
"""Seconds after which a rank that waits looks whether the others are still there."""
FOREVER = float("inf")


class SharedGroup:
    """One rank's side of a group on one machine."""

    def __init__(
        self,
        room: Room,
        rank: int,
        take_seat: TakeSeat,
        seconds: float,
        trace: Trace | None = None,
        lost: Callable[[Sequence[int]], None] = lambda _behind: None,
    ) -> None:
        """Take a place in the room.

        Args:
            room: of all ranks.
            rank: this one's number.
            take_seat: how to exchange in it.
            seconds: after which a rank that does not answer counts as lost.
            trace: where to write what this rank does.
            lost: is called now and then while this rank waits, with nobody, and with the ranks
                that are behind when the seconds are over; raises when a rank is gone.
        """
        self.rank, self.ranks = rank, room.ranks
        self.traffic = Traffic()
        self._room = room
        self._seat = take_seat(room, rank)
        self._seconds = seconds
        self._glance = min(GLANCE, seconds)
        self._trace = trace
        self._lost = lost
        self._spin = 0.0
        self._turn = 0
        self._calls = 0
        self._noted = memoryview(bytearray(8)).cast("Q") if trace is None else trace.calls(rank)
        self._record = torch.empty(PLACE, dtype=torch.uint8)
        self._written = self._record.numpy().data
        self._told = [room.place(LEADER, turn).numpy().data for turn in (0, 1)]

    def settle(self, seconds: float, *, spin: bool) -> None:
        """From now on a rank that does not answer for this long counts as lost."""
        self._seconds = seconds
        self._glance = min(GLANCE, seconds)
        self._spin = SPIN if spin else 0.0

    def enter(self, doing: str) -> None:
        """Note what this rank is about to do."""
        self._calls = 0
        if self._trace is not None:
            self._trace.enter(self.rank, doing)

    def gather(self, *parts: Tensor) -> Sequence[Sequence[Tensor]]:
        """Return every part of all ranks, by rank, where they lie."""
        return self._exchanged(parts, True, 0, self.ranks)

    def total(self, *parts: Tensor) -> Sequence[Tensor]:
        """Add parts of all ranks along the fixed tree, in the call that exchanges them."""
        sums = [torch.empty_like(part) for part in parts]
        terms: list[int] = []
        size = nbytes = 0
        for part, own in zip(parts, sums, strict=True):
            assert part.is_contiguous()
            assert part.dtype in (torch.float32, torch.int64)
            count = part.nbytes
            terms += (part.data_ptr(), count, size, own.data_ptr(), part.itemsize)
            size += padded(count)
            nbytes += count
        self._begin(nbytes)
        if size <= PLACE:
            self._add(terms)
        else:
            for part, own in zip(parts, sums, strict=True):
                for start in range(0, part.nbytes, PLACE):
                    count = min(PLACE, part.nbytes - start)
                    places = part.data_ptr() + start, count, 0, own.data_ptr() + start
                    self._add([*places, part.itemsize])
        self._noted[0] = 0
        return sums

    def collect(self, part: Tensor) -> Sequence[Tensor]:
        """Return the parts of all ranks to the leader, and nothing to others."""
        if self.rank != LEADER:
            self._exchanged((part,), True, 0, 0)
            return ()
        (others,) = self._exchanged((part,), False, 1, self.ranks)
        return [part, *others]

    def share(self, numbers: Tensor) -> Tensor:
        """Return the leader's tensor."""
        ((found,),) = self._exchanged((numbers,), self.rank == LEADER, LEADER, LEADER + 1)
        return found.clone()

    def tell(self, record: bytes | None) -> bytes:
        """Return the leader's record; wait for as long as it has nothing to say."""
        if record is not None:
            self._begin(LENGTH + len(record))
            whole = len(record).to_bytes(LENGTH, "little") + record
            for first in range(0, len(whole), PLACE):
                piece = whole[first : first + PLACE]
                self._written[: len(piece)] = piece
                self._pass([self._record.data_ptr(), len(piece), 0], True, 0, 0, self._seconds)
            self._noted[0] = 0
            return record
        self._begin(0)
        length = int.from_bytes(self._heard(LENGTH), "little")
        told = self._told[self._turn & 1][LENGTH : LENGTH + length].tobytes()
        while len(told) < length:
            told += self._heard(length - len(told))
        self._noted[0] = 0
        return told

    def _heard(self, count: int) -> bytes:
        """Return the first bytes of what the leader writes next."""
        self._pass([], False, LEADER, LEADER + 1, FOREVER)
        return self._told[self._turn & 1][:count].tobytes()

    def _exchanged(
        self, parts: Sequence[Tensor], writes: bool, first: int, last: int
    ) -> list[list[Tensor]]:
        """Let ranks write parts of the same shapes; return those of some ranks, part by part."""
        layout = self._room.layout(parts, self._turn + 1, first, last)
        self._begin(layout.nbytes if writes else 0)
        if layout.fits:
            listed: list[int] = []
            for part, extent in zip(parts, layout.extents, strict=True):
                assert part.is_contiguous()
                listed += (part.data_ptr(), *extent)
            self._pass(listed, writes, first, last, self._seconds)
            found = layout.views
        else:
            found = [self._in_pieces(part, writes, first, last) for part in parts]
        self._noted[0] = 0
        return found

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

    def _begin(self, nbytes: int) -> None:
        """Count a call, and note that this rank is in it."""
        self.traffic.add(nbytes)
        self._calls += 1
        self._noted[0] = self._calls

    def _pass(self, parts: list[int], writes: bool, first: int, last: int, seconds: float) -> None:
        """Exchange what fits one place; what others wrote lies there until the next but one."""
        self._turn += 1
        ask = self._turn, parts, writes, first, last
        if not self._seat.exchange(*ask, self._spin, self._glance):
            self._wait(lambda: self._seat.exchange(*ask, 0.0, GLANCE), seconds)

    def _add(self, terms: list[int]) -> None:
        """Add what fits one place."""
        self._turn += 1
        ask = self._turn, terms
        if not self._seat.total(*ask, self._spin, self._glance):
            self._wait(lambda: self._seat.total(*ask, 0.0, GLANCE), self._seconds)

    def _wait(self, tried: Callable[[], bool], seconds: float) -> None:
        """Go on with an exchange, looking after the others now and then."""
        end = time.monotonic() + seconds
        while True:
            late = time.monotonic() > end
            self._lost(self._room.behind(self._turn) if late else ())
            if tried():
                return
            if time.monotonic() > end + GLANCE:
                raise LostRankError(f"rank {self.rank} waits for another one in vain")
