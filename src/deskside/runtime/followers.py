"""The processes of the ranks that follow: started by the leader, known by handle, ended by it.

Each is a child in a process group of its own that dies with its parent. Only these children are
ever signalled. Loads no torch.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from deskside.runtime.launch import Worker

__all__ = ["FOLLOWER", "FollowOrder", "Followers"]

FOLLOWER = "deskside.runtime.follower"
"""The module that runs as a rank that follows."""

GRACE = 2.0
"""Seconds that ranks have to leave by themselves."""


class FollowOrder(BaseModel):
    """What a rank is started with: where to come, and as whom."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parent: int
    host: str
    port: int
    rank: int
    ranks: int
    seconds: float
    """In which all ranks must come together."""
    trace: Path
    """File of what every rank did last."""
    memory: int
    """Descriptor of the memory that all ranks share."""


@dataclass(frozen=True, slots=True)
class Followers:
    """Running ranks, from 1 on."""

    workers: tuple[Worker, ...]

    @staticmethod
    def start(orders: Sequence[FollowOrder], module: str = FOLLOWER) -> "Followers":
        """Start a process for every order."""
        started: list[Worker] = []
        try:
            started.extend(_start(order, module) for order in orders)
        except BaseException:
            Followers(tuple(started)).kill()
            raise
        return Followers(tuple(started))

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, by rank."""
        return tuple(worker.pid for worker in self.workers)

    def ended(self) -> tuple[int, str] | None:
        """Return a rank that has ended, one by a signal first, and how; None while all run."""
        ended = {r: w.exit_status() for r, w in enumerate(self.workers, 1)}
        found = [r for r, status in ended.items() if status is not None]
        if not found:
            return None
        rank = min(found, key=lambda r: (ended[r] or 0, r))
        worker = self.workers[rank - 1]
        return rank, f"(process {worker.pid}) {worker.ending()}"

    def held_still(self) -> tuple[int, ...]:
        """Return the ranks that run and that the kernel does not let run."""
        return tuple(
            rank
            for rank, worker in enumerate(self.workers, 1)
            if worker.exit_status() is None and worker.stopped()
        )

    def fallen(self) -> tuple[int, str] | None:
        """Return a rank that has ended or is held still, and how; None while all run."""
        for rank in self.held_still():
            process = self.workers[rank - 1].pid
            return rank, f"(process {process}) is held still (SIGSTOP or a debugger)"
        return self.ended()

    def end(self) -> None:
        """End the children for good: they may leave by themselves first."""
        end = time.monotonic() + GRACE
        while time.monotonic() < end and any(w.exit_status() is None for w in self.workers):
            time.sleep(0.01)
        self.kill()

    def kill(self) -> None:
        """End the children at once."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.wait()


def _start(order: FollowOrder, module: str) -> Worker:
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=sys.stderr,
        process_group=0,
        pass_fds=(order.memory,),
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(order.model_dump_json().encode() + b"\n")
    return Worker(process, "", "")


def orders(
    ranks: int, host: str, port: int, seconds: float, trace: Path, memory: int
) -> tuple[FollowOrder, ...]:
    """Return the orders of all ranks but the leader's."""
    return tuple(
        FollowOrder(
            parent=os.getpid(),
            host=host,
            port=port,
            rank=rank,
            ranks=ranks,
            seconds=seconds,
            trace=trace,
            memory=memory,
        )
        for rank in range(1, ranks)
    )
