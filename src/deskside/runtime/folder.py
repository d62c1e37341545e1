"""A run's private folder: where its sockets lie, and who ran it.

Owns the name, the mode and the removal, also of folders whose run was killed. A run is known by
process id and start time together, so a process id that was used again is never taken for it.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from deskside.machine.files import ROOT, text

__all__ = ["RunFolder", "started_at"]

PREFIX = "deskside-run-"
OWNER = "owner"


def started_at(process: int, root: Path = ROOT) -> str | None:
    """Return the kernel's start time of a process, or None where there is none."""
    stat = text(root / "proc" / str(process) / "stat")
    after_name = stat.rpartition(")")[2].split()
    return after_name[19] if len(after_name) > 19 else None


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
        process = os.getpid()
        (path / OWNER).write_text(f"{process} {started_at(process)}\n", encoding="utf-8")
        return RunFolder(path)

    def socket(self, name: str) -> str:
        """Return the address of a socket in this folder."""
        return f"ipc://{self.path / name}"

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
    """Find this user's folders whose run is over."""
    for folder in parent.glob(f"{PREFIX}*"):
        owner = text(folder / OWNER).split()
        ours = folder.is_dir() and folder.stat().st_uid == os.getuid()
        if ours and len(owner) == 2 and owner[1] != started_at(int(owner[0])):
            yield folder
