"""What is shown while weights are read: a bar on a terminal, a line every few seconds elsewhere.

Owns the timing and the words; is told bytes of every rank, each of which has a bar. A load that is
over at once shows nothing.
"""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from deskside.core import RankLoad
from deskside.planning.amounts import amount

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Loading"]

BAR_AFTER = 0.5
"""Seconds."""
LINE_EVERY = 5.0


class Loading:
    """Shows a load's progress until it is left; call it with what every rank has read."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._shown = 0.0
        self._bar: Progress | None = None
        self._tasks: list[TaskID] = []

    def __call__(self, loads: Sequence[RankLoad]) -> None:
        """Take in how far it is."""
        done, total = sum(one.done for one in loads), sum(one.total for one in loads)
        now = self._clock()
        if self._first is None:  # what came before, such as imports, is no loading
            self._first, self._shown = (now, done), now
        started, before = self._first
        if self._out.isatty():
            if self._bar is None and now - started >= BAR_AFTER:
                self._open(loads)
            if self._bar is not None:
                for task, one in zip(self._tasks, loads, strict=True):
                    self._bar.update(task, completed=one.done, total=one.total or None)
        elif now - self._shown >= LINE_EVERY:
            self._shown = now
            rate = (done - before) / (now - started)
            line = f"deskside: {_line(done, total, rate)}"
            self._out.write(f"{line}{_shares(loads)}\n")
            self._out.flush()

    def _open(self, loads: Sequence[RankLoad]) -> None:
        from rich.console import Console  # only for a load that takes its time
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(file=self._out),
            transient=True,
        )
        self._tasks = [
            self._bar.add_task(_name(one) if len(loads) > 1 else "loading", total=one.total or None)
            for one in loads
        ]
        self._bar.start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away, however the load ended."""
        if self._bar is not None:
            self._bar.stop()


def _name(load: RankLoad) -> str:
    """Return words such as `rank 1 (node 0)`."""
    nodes = "+".join(map(str, load.nodes))
    return f"rank {load.rank} (node {nodes})" if nodes else f"rank {load.rank}"


def _shares(loads: Sequence[RankLoad]) -> str:
    """Return what each of several ranks has read: `; rank 0 (node 0) 45 %, rank 1 ...`."""
    if len(loads) == 1:
        return ""
    shares = (f"{_name(one)} {100 * one.done // (one.total or 1)} %" for one in loads)
    return f"; {', '.join(shares)}"


def _line(done: int, total: int, rate: float) -> str:
    """Return one line such as `loading 12.30 GiB of 155.42 GiB, 1.91 GiB/s, 75 s left`."""
    left = f"{(total - done) / rate:.0f} s left" if rate else "nothing comes"
    return f"loading {amount(done)} of {amount(total)}, {amount(int(rate))}/s, {left}"
