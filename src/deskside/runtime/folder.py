"""A run's private folder: where its sockets lie, and who ran it.

Owns the name, the mode and the removal, also of folders whose run was killed. A run is known by
process id and start time together, so a process id that was used again is never taken for it.
"""

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from deskside.errors import InputError
from deskside.machine.files import ROOT, text

__all__ = ["PREFIX", "Process", "RunFolder", "started_at"]

log = logging.getLogger("deskside.launch")

PREFIX = "deskside-run-"
OWNER = "owner"
PROCESSES = "processes"
TRACE = "trace"
EVERY = 0.02
MOST_PATH = 107
"""Characters of a socket's path that Linux takes."""


def started_at(process: int, root: Path = ROOT) -> str | None:
    """Return the kernel's start time of a process, or None where there is none."""
    stat = text(root / "proc" / str(process) / "stat")
    after_name = stat.rpartition(")")[2].split()
    return after_name[19] if len(after_name) > 19 else None


def state_of(process: int, root: Path = ROOT) -> str:
    """Return the kernel's letter for a process's state, or nothing where there is none."""
    stat = text(root / "proc" / str(process) / "stat")
    return "".join(stat.rpartition(")")[2].split()[:1])


def command_of(process: int, root: Path = ROOT) -> str:
    """Return a process's command line."""
    return text(root / "proc" / str(process) / "cmdline").replace("\0", " ").strip()


@dataclass(frozen=True, slots=True)
class Process:
    """A process as a run's file names it; `command` is empty where only the time was noted."""

    number: int
    started: str
    command: str = ""

    @staticmethod
    def now(number: int, root: Path = ROOT) -> "Process":
        """Return a process as it is now."""
        return Process(number, started_at(number, root) or "", command_of(number, root))

    def lives(self, root: Path = ROOT) -> bool:
        """Whether this very process is there: number, start time and command are the same."""
        return (
            self.started == started_at(self.number, root)
            and self.command in ("", command_of(self.number, root))
            and state_of(self.number, root) != "Z"
        )

    def line(self) -> str:
        """Return the line for the file."""
        return f"{self.number} {self.started} {json.dumps(self.command)}\n"

    @staticmethod
    def parse(line: str) -> "Process | None":
        """Read a line; None where it is none of ours."""
        number, _, rest = line.strip().partition(" ")
        started, _, command = rest.partition(" ")
        if not (number.isascii() and number.isdigit() and started.isdigit()):
            return None
        try:
            said = json.loads(command) if command else ""
        except ValueError:
            return None
        return Process(int(number), started, said) if isinstance(said, str) else None


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of this run; leaving the context removes it."""

    path: Path

    @staticmethod
    def create(parent: Path | None = None) -> "RunFolder":
        """Make a folder that only this user can enter, after removing those of dead runs."""
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        for stale in _stale(parent):
            shutil.rmtree(stale, ignore_errors=True)
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))  # mode 0700
        (path / OWNER).write_text(Process.now(os.getpid()).line(), encoding="utf-8")
        return RunFolder(path)

    @staticmethod
    def remove_of(owner: int, seconds: float, parent: Path | None = None) -> None:
        """Remove the folders of a process that has ended and could not do it itself.

        Waits for so long until what it had noted is gone too; what still lives keeps its folder, as
        proof.
        """
        end = time.monotonic() + seconds
        for folder in RunFolder.of(owner, parent):
            process = folder.owner()
            if process is None or process.lives():
                continue
            while alive := any(one.lives() for one in folder.processes()):
                if time.monotonic() > end:
                    break
                time.sleep(EVERY)
            if not alive:
                shutil.rmtree(folder.path, ignore_errors=True)

    @staticmethod
    def of(owner: int, parent: Path | None = None) -> "Iterator[RunFolder]":
        """Yield the folders that a process has made, by what they say."""
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        for path in parent.glob(f"{PREFIX}*"):
            folder = RunFolder(path)
            process = folder.owner()
            if process is not None and process.number == owner:
                yield folder

    @property
    def trace(self) -> Path:
        """Where several ranks note what they do."""
        return self.path / TRACE

    def note(self, process: int) -> None:
        """Write down a process of this run, as the proof that it is ours."""
        with (self.path / PROCESSES).open("a", encoding="utf-8") as file:
            file.write(Process.now(process).line())

    def owner(self) -> Process | None:
        """Return who ran it, if the file says."""
        return Process.parse(text(self.path / OWNER))

    def processes(self) -> list[Process]:
        """Return what was noted."""
        lines = text(self.path / PROCESSES).splitlines()
        return [one for one in map(Process.parse, lines) if one is not None]

    def is_over(self, root: Path = ROOT) -> bool:
        """Whether the run is known to have ended; a folder that says nothing is nobody's."""
        owner = self.owner()
        return owner is not None and not owner.lives(root)

    def socket(self, name: str) -> str:
        """Return the address of a socket in this folder.

        Raises:
            InputError: the folder lies too deep for a socket.
        """
        path = str(self.path / name)
        if len(path) > MOST_PATH:
            raise InputError(
                f"the temporary folder {self.path.parent} lies too deep for a socket: need a path "
                f"of at most {MOST_PATH} characters, have {len(path)}; set TMPDIR to a shorter one"
            )
        return f"ipc://{path}"

    def __enter__(self) -> Self:
        """Return the folder itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)


def _stale(parent: Path) -> Iterator[Path]:
    """Find this user's folders whose run is over; what still has processes stays, as proof."""
    for path in parent.glob(f"{PREFIX}*"):
        folder = RunFolder(path)
        if path.is_dir() and path.stat().st_uid == os.getuid() and folder.is_over():
            alive = [one for one in folder.processes() if one.lives()]
            for one in alive:
                log.warning(
                    "process %d (%.100r) of an earlier run is still there: deskside doctor --clean",
                    one.number,
                    one.command,
                )
            if not alive:
                yield path
