"""Ranks as processes of any machines over TCP, with torch's gloo.

Owns the meeting of the ranks and the time that each may take. Three meshes: one for what a load
exchanges, one for steps, where a rank that does not answer is lost, and one on which ranks wait for
the leader without an end.
"""

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ProcessGroupGloo,
    Store,
    TCPStore,
    rendezvous,
)

from deskside.distributed.group import LEADER, Traffic
from deskside.errors import LostRankError
from deskside.ops.tiles import pairwise_sum

__all__ = ["GlooGroup", "Meeting"]

FOREVER = timedelta(days=365)
PACKET = 1024
"""Bytes of the first message of a record; its first four are the record's length."""
EVERY = 0.02


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where ranks meet, and how long they wait for each other."""

    store: Store
    rank: int
    ranks: int
    host: str
    """Address of this rank's own end."""
    seconds: float

    @staticmethod
    def lead(ranks: int, seconds: float, host: str = "127.0.0.1") -> tuple["Meeting", int]:
        """Open a meeting on this machine; return it with its port."""
        wait = timedelta(seconds=seconds)
        store = TCPStore(host, 0, None, is_master=True, timeout=wait, wait_for_workers=False)
        return Meeting(store, LEADER, ranks, host, seconds), store.port

    @staticmethod
    def come(host: str, port: int, rank: int, ranks: int, seconds: float) -> "Meeting":
        """Come to a meeting that another process has opened or will open."""
        store = TCPStore(host, port, None, is_master=False, timeout=timedelta(seconds=seconds))
        return Meeting(store, rank, ranks, _own_address(host, port), seconds)

    @staticmethod
    def torchrun(master: str, seconds: float) -> "Meeting":
        """Come to the meeting that torchrun's variables name, with the address of rank 0."""
        store, rank, ranks = next(iter(rendezvous("env://", timeout=timedelta(seconds=seconds))))
        return Meeting(store, rank, ranks, _own_address(master, 9), seconds)

    def mark(self, word: str) -> None:
        """Let others know that something has happened."""
        self.store.set(word, "")

    def wait(self, word: str) -> None:
        """Wait until another rank has marked it.

        Raises:
            LostRankError: the time is over, or the leader is gone.
        """
        try:
            self.store.wait([word], timedelta(seconds=self.seconds))
        except RuntimeError as error:
            raise LostRankError(f"rank {self.rank} waits for {word!r}: {_line(error)}") from error

    def gather(
        self,
        missing: Callable[[Sequence[int]], None],
        last: Callable[[int], str] = lambda _rank: "not there",
    ) -> None:
        """Wait until every rank has come.

        Args:
            missing: is called with the ranks that have not, again and again; may raise.
            last: says what a rank last did.

        Raises:
            LostRankError: the time is over; names the ranks.
        """
        self.mark(f"here-{self.rank}")
        end = time.monotonic() + self.seconds
        while absent := [r for r in range(self.ranks) if not self.store.check([f"here-{r}"])]:
            missing(absent)
            if time.monotonic() > end:
                seen = "; ".join(f"rank {rank}: {last(rank)}" for rank in absent)
                raise LostRankError(
                    f"ranks did not come together within {self.seconds:g} s "
                    f"(--rendezvous-timeout); missing {seen}"
                )
            time.sleep(EVERY)


class GlooGroup:
    """One rank's side of a group of processes."""

    def __init__(self, meeting: Meeting) -> None:
        """Connect to all others; every rank has come.

        Raises:
            LostRankError: a rank left before it was connected.
        """
        self.rank, self.ranks = meeting.rank, meeting.ranks
        self.traffic = Traffic()
        self._meeting = meeting
        self._doing = "meeting"
        self._patient = self._mesh("patient", FOREVER)
        self._steps = self._mesh("load", timedelta(seconds=meeting.seconds))

    def settle(self, seconds: float, *, spin: bool) -> None:
        """From now on a rank that does not answer for this long counts as lost; all ranks call.

        Gloo waits in its own way, whatever `spin` says.
        """
        self._steps = self._mesh("steps", timedelta(seconds=seconds))

    def enter(self, doing: str) -> None:
        """Note what this rank is about to do."""
        self._doing = doing

    def gather(self, *parts: Tensor) -> Sequence[Sequence[Tensor]]:
        """Return every part of all ranks, by rank."""
        assert all(part.is_contiguous() for part in parts)
        own = torch.cat([_bytes(part) for part in parts])
        places = [torch.empty_like(own) for _ in range(self.ranks)]
        self._done(lambda: self._steps.allgather([places], [own]).wait(), own.nbytes)
        found = [place.split([part.nbytes for part in parts]) for place in places]
        return [
            [pieces[i].clone().view(part.dtype).view(part.shape) for pieces in found]
            for i, part in enumerate(parts)
        ]

    def total(self, *parts: Tensor) -> Sequence[Tensor]:
        """Add parts of all ranks along the fixed tree."""
        return [pairwise_sum(list(found)) for found in self.gather(*parts)]

    def collect(self, part: Tensor) -> Sequence[Tensor]:
        """Return the parts of all ranks to the leader, and nothing to others."""
        assert part.is_contiguous()
        if self.rank != LEADER:
            self._done(lambda: self._steps.send([part], LEADER, 0).wait(), part.nbytes)
            return ()
        others = [torch.empty_like(part) for _ in range(self.ranks - 1)]
        for rank, place in enumerate(others, 1):
            self._done(partial(self._receive, place, rank), 0)
        return [part, *others]

    def share(self, numbers: Tensor) -> Tensor:
        """Return the leader's tensor."""
        self._done(lambda: self._steps.broadcast([numbers]).wait(), self._sent(numbers.nbytes))
        return numbers

    def tell(self, record: bytes | None) -> bytes:
        """Return the leader's record; wait for as long as it has nothing to say."""
        first = torch.zeros(PACKET, dtype=torch.uint8)
        if record is not None:
            whole = torch.frombuffer(bytearray(_length(record) + record), dtype=torch.uint8)
            first[: min(PACKET, whole.shape[0])] = whole[:PACKET]
        self._done(lambda: self._patient.broadcast([first]).wait(), self._sent(PACKET))
        length = int.from_bytes(first[:4].numpy().tobytes(), "little")
        if length <= PACKET - 4:
            return first[4 : 4 + length].numpy().tobytes()
        rest = whole[PACKET:] if record is not None else first.new_empty(length + 4 - PACKET)
        self._done(lambda: self._patient.broadcast([rest]).wait(), self._sent(rest.nbytes))
        return torch.cat((first[4:], rest)).numpy().tobytes()

    def _receive(self, place: Tensor, rank: int) -> None:
        self._steps.recv([place], rank, 0).wait()

    def _mesh(self, name: str, wait: timedelta) -> Any:
        gloo: Any = ProcessGroupGloo  # torch's stubs lack most of it
        options = gloo._Options()  # the way to name an interface
        options._devices = [gloo.create_device(hostname=self._meeting.host)]
        options._timeout = wait
        store = PrefixStore(name, self._meeting.store)
        try:
            return gloo(store, self.rank, self.ranks, options)
        except RuntimeError as error:
            raise LostRankError(f"a rank left while ranks met ({_line(error)})") from error

    def _sent(self, nbytes: int) -> int:
        return nbytes * (self.ranks - 1) if self.rank == LEADER else 0

    def _done(self, exchange: Callable[[], object], nbytes: int) -> None:
        self.traffic.add(nbytes)
        try:
            exchange()
        except RuntimeError as error:
            raise LostRankError(
                f"another rank is gone or does not answer rank {self.rank} in {self._doing} "
                f"({_line(error)})"
            ) from error


def _bytes(tensor: Tensor) -> Tensor:
    """Look at a tensor as bytes, which gloo carries whatever their type."""
    return tensor.view(-1).view(torch.uint8)


def _length(record: bytes) -> bytes:
    return len(record).to_bytes(4, "little")


def _line(error: RuntimeError) -> str:
    """Return the first sentence of what torch says, without where in its source."""
    return " ".join(str(error).split("] ", 1)[-1].split()).split(". ")[0][:200]


def _own_address(host: str, port: int) -> str:
    """Return the address by which this machine reaches another; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        address: str = probe.getsockname()[0]
        return address
