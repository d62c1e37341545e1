"""Ranks as threads of one process: the group's protocol over a shared list, for small models."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from deskside.distributed.group import LEADER, Traffic
from deskside.errors import LostRankError
from deskside.ops.tiles import pairwise_sum

R = TypeVar("R")
PATIENCE = 60.0


class Table:
    """What the threads have between them."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.barrier = threading.Barrier(ranks, timeout=PATIENCE)
        self.parts: list[list[Tensor]] = [[]] * ranks
        self.record = b""


class ThreadGroup:
    """One thread's side."""

    def __init__(self, table: Table, rank: int) -> None:
        self._table = table
        self.rank, self.ranks = rank, table.ranks
        self.traffic = Traffic()
        self.noise: Callable[[Tensor], Tensor] = lambda part: part

    def settle(self, seconds: float, *, spin: bool) -> None:
        """Wait as before."""

    def enter(self, doing: str) -> None:
        """Note nothing."""

    def gather(self, *parts: Tensor) -> Sequence[Sequence[Tensor]]:
        assert all(part.is_contiguous() for part in parts)
        self.traffic.add(sum(part.nbytes for part in parts))
        self._table.parts[self.rank] = [self.noise(part).clone() for part in parts]
        self._wait()
        found = [list(column) for column in zip(*self._table.parts, strict=True)]
        for part, column in zip(parts, found, strict=True):
            assert {(p.shape, p.dtype) for p in column} == {(part.shape, part.dtype)}
        self._wait()
        return found

    def total(self, *parts: Tensor) -> Sequence[Tensor]:
        return [pairwise_sum(list(found)) for found in self.gather(*parts)]

    def collect(self, part: Tensor) -> Sequence[Tensor]:
        (found,) = self.gather(part)
        return found if self.rank == LEADER else ()

    def share(self, numbers: Tensor) -> Tensor:
        (found,) = self.gather(numbers)
        return found[LEADER]

    def tell(self, record: bytes | None) -> bytes:
        self.traffic.add(len(record or b""))
        if record is not None:
            self._table.record = record
        self._wait()
        found = self._table.record
        self._wait()
        return found

    def _wait(self) -> None:
        try:
            self._table.barrier.wait()
        except threading.BrokenBarrierError:
            raise LostRankError("another thread raised") from None


def as_threads(ranks: int, body: Callable[[ThreadGroup], R]) -> list[R]:
    """Run a body once a rank; the first fault that is not a lost neighbour comes out."""
    table = Table(ranks)

    def one(rank: int) -> R:
        try:
            return body(ThreadGroup(table, rank))
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        done = [pool.submit(one, rank) for rank in range(ranks)]
    faults = [f.exception() for f in done]
    for fault in faults:
        if fault is not None and not isinstance(fault, LostRankError):
            raise fault
    return [future.result() for future in done]
