"""Starts the engine's process and ends it.

The worker is a child in a process group of its own, so that a Ctrl-C of the terminal reaches the
parent alone, which then ends it in order. It dies with its parent, whatever happens to that. Only
this child is ever signalled, by its handle. Loads no torch.
"""

import contextlib
import logging
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deskside.config.engine import EngineOptions
from deskside.distributed.trace import Trace
from deskside.machine.files import ROOT, text
from deskside.runtime.folder import RunFolder
from deskside.wire.messages import Order

__all__ = ["WORKER", "Worker", "launch"]

WORKER = "deskside.runtime.worker"
"""The module that runs as the engine's process."""

GRACE = 3.0
"""Seconds that a worker has to leave by itself."""

log = logging.getLogger("deskside.launch")


@dataclass(frozen=True, slots=True)
class Worker:
    """A running worker and the addresses at which it is talked to."""

    process: "subprocess.Popen[bytes]"
    commands: str
    events: str

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self.process.pid

    def exit_status(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        return self.process.poll()

    def stopped(self, root: Path = ROOT) -> bool:
        """Whether the kernel holds the process or a child still, as SIGSTOP and debuggers do."""
        own = root / "proc" / str(self.pid)
        children = text(own / "task" / str(self.pid) / "children").split()
        return any(_held_still(root, process) for process in (str(self.pid), *children))

    def ending(self) -> str:
        """Say how the process ended."""
        status = self.exit_status()
        if status is None:
            return "still runs"
        return f"got {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"

    def name(self) -> str:
        """Name the process, as a rank where it leads several."""
        process = f"process {self.pid}"
        return f"rank 0 ({process})" if self.last_words() else process

    def last_words(self) -> str:
        """Say what a leader of several ranks did last, unless it has cleared up; else nothing."""
        for folder in RunFolder.of(self.pid):
            with contextlib.suppress(OSError, struct.error):
                return f"; last seen: {Trace.left(folder.trace, 0)}"
        return ""

    def end(self) -> None:
        """End the child for good: it may leave by itself first."""
        try:
            self.process.wait(GRACE if not self.stopped() else 0)
        except subprocess.TimeoutExpired:
            log.info("worker %d did not leave by itself: killed", self.pid)
            self.kill()

    def kill(self) -> None:
        """End the child at once."""
        self.process.kill()
        self.process.wait()


def _held_still(root: Path, process: str) -> bool:
    stat = text(root / "proc" / process / "stat")
    return stat.rpartition(")")[2].split()[:1] in (["T"], ["t"])


@contextmanager
def launch(model: str, options: EngineOptions, module: str = WORKER) -> Iterator[Worker]:
    """Start a worker that loads a model; leaving the context ends it.

    Args:
        model: what `--model` says.
        options: how to load and run it.
        module: what runs in the child; tests put an engine of their own in its place.
    """
    with RunFolder.create() as folder:
        order = Order(
            parent=os.getpid(),
            commands=folder.socket("commands"),
            events=folder.socket("events"),
            model=model,
            options=options,
        )
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            process_group=0,
        )
        worker = Worker(process, order.commands, order.events)
        folder.note(process.pid)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(order.model_dump_json().encode() + b"\n")
            yield worker
            worker.end()
        except BaseException:
            worker.kill()
            raise
        finally:
            RunFolder.remove_of(process.pid, GRACE)  # of a worker with ranks that was killed
