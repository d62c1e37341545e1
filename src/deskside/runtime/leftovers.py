"""What runs of ours that are over have left: processes that still live, and folders.

Owns the proof that a process is ours: its id, its start time and its command stand in a run's own
file, and all three are the same now. Nothing else is ever ended.
"""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deskside.machine.files import ROOT
from deskside.runtime.folder import PREFIX, Process, RunFolder

__all__ = ["Leftover", "clean", "leftovers", "run_of"]

GRACE = 2.0
"""Seconds that a process has to end by itself."""
EVERY = 0.05


@dataclass(frozen=True, slots=True)
class Leftover:
    """A run that is over, and the processes of it that are not."""

    folder: Path
    processes: tuple[Process, ...]

    def line(self) -> str:
        """Say what it is."""
        if not self.processes:
            return f"folder {self.folder} of a run that is over"
        alive = ", ".join(f"process {one.number} ({one.command[:100]!r})" for one in self.processes)
        return f"{alive} of run {self.folder.name}, which is over"


def leftovers(parent: Path | None = None, root: Path = ROOT) -> list[Leftover]:
    """Find this user's runs that are over and left something.

    Args:
        parent: where run folders lie; by default where temporary files go.
        root: of the machine's files.
    """
    found = []
    for folder in _folders(parent):
        if folder.is_over(root):
            alive = tuple(one for one in folder.processes() if one.lives(root))
            found.append(Leftover(folder.path, alive))
    return found


def run_of(process: int, parent: Path | None = None, root: Path = ROOT) -> str | None:
    """Return the name of the run that a process belongs to by that run's own file."""
    for folder in _folders(parent):
        for one in (folder.owner(), *folder.processes()):
            if one is not None and one.number == process and one.lives(root):
                return folder.path.name
    return None


def clean(parent: Path | None = None) -> Iterator[str]:
    """End the processes of runs that are over and remove their folders; say what was done."""
    for left in leftovers(parent):
        ended = [one for one in left.processes if _end(one)]
        for one in ended:
            yield f"ended process {one.number} ({one.command[:100]!r}) of run {left.folder.name}"
        if len(ended) == len(left.processes):
            shutil.rmtree(left.folder, ignore_errors=True)
            yield f"removed {left.folder}"
        else:
            yield f"left {left.folder}: a process of it cannot be ended"


def _folders(parent: Path | None) -> Iterator[RunFolder]:
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    for path in sorted(parent.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid():
                yield RunFolder(path)


def _end(process: Process) -> bool:
    """End a process by a handle that cannot come to mean another; say whether it is gone."""
    try:
        handle = os.pidfd_open(process.number)
    except ProcessLookupError:
        return True
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not process.lives():  # looked at again, now that the handle is held
                return True
            signal.pidfd_send_signal(handle, number)
            end = time.monotonic() + GRACE
            while process.lives() and time.monotonic() < end:
                time.sleep(EVERY)
        return not process.lives()
    except PermissionError:
        return False
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)
