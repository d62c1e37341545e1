"""What is shown while weights are read: a bar on a terminal, a line every few seconds elsewhere.

Owns the timing and the words; is told bytes. A load that is over at once shows nothing.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from deskside.planning.amounts import amount

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Loading"]

BAR_AFTER = 0.5
"""Seconds."""
LINE_EVERY = 5.0


class Loading:
    """Shows a load's progress until it is left; call it with bytes read and bytes in all."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._shown = 0.0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        """Take in how far it is."""
        now = self._clock()
        if self._first is None:  # what came before, such as imports, is no loading
            self._first, self._shown = (now, done), now
        started, before = self._first
        if self._out.isatty():
            if self._bar is None and now - started >= BAR_AFTER:
                self._open(total)
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, completed=done)
        elif now - self._shown >= LINE_EVERY:
            self._shown = now
            rate = (done - before) / (now - started)
            self._out.write(f"deskside: {_line(done, total, rate)}\n")
            self._out.flush()

    def _open(self, total: int) -> None:
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
            TextColumn("loading"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(file=self._out),
            transient=True,
        )
        self._task = self._bar.add_task("loading", total=total)
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


def _line(done: int, total: int, rate: float) -> str:
    """Return one line such as `loading 12.30 GiB of 155.42 GiB, 1.91 GiB/s, 75 s left`."""
    left = f"{(total - done) / rate:.0f} s left" if rate else "nothing comes"
    return f"loading {amount(done)} of {amount(total)}, {amount(int(rate))}/s, {left}"
