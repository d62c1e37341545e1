"""What every rank of this machine did last, where its neighbours can read it after its death.

One small file in the run's folder, mapped by all; a rank writes its own slot and reads the others'.
"""

import mmap
import struct
from pathlib import Path

__all__ = ["Trace"]

SLOT = 512
HEADER = struct.Struct("<QQQI")
"""Bytes read of a load and to be read, calls made, and bytes of the words behind it."""
CALLS = 16
"""Where in a slot the calls stand."""


class Trace:
    """The slots of all ranks."""

    def __init__(self, path: Path, ranks: int) -> None:
        """Map a trace; the first to come makes the file."""
        with path.open("ab") as file:
            file.truncate(SLOT * ranks)
        with path.open("r+b") as file:
            self._room = mmap.mmap(file.fileno(), SLOT * ranks)

    def enter(self, rank: int, doing: str) -> None:
        """Write what a rank is about to do."""
        words = doing.encode()[: SLOT - HEADER.size]
        struct.pack_into("<QI", self._room, rank * SLOT + CALLS, 0, len(words))
        start = rank * SLOT + HEADER.size
        self._room[start : start + len(words)] = words

    def calls(self, rank: int) -> memoryview:
        """Return one number to write to: which exchange of it this is; 0 outside of any."""
        start = rank * SLOT + CALLS
        return memoryview(self._room)[start : start + 8].cast("Q")

    def load(self, rank: int, done: int, total: int) -> None:
        """Write how far a rank's load is, in bytes."""
        struct.pack_into("<QQ", self._room, rank * SLOT, done, total)

    def loaded(self, rank: int) -> tuple[int, int]:
        """Return how far a rank's load is: bytes read and bytes to read, 0 before it begins."""
        done, total, _, _ = HEADER.unpack_from(self._room, rank * SLOT)
        return done, total

    def read(self, rank: int) -> str:
        """Return a rank's last operation in words."""
        return _words(self._room[rank * SLOT : (rank + 1) * SLOT])

    @staticmethod
    def left(path: Path, rank: int) -> str:
        """Return the words of a rank whose group is over, from the file that it left."""
        whole = path.read_bytes()
        return _words(whole[rank * SLOT : (rank + 1) * SLOT])


def _words(slot: bytes) -> str:
    _, _, calls, length = HEADER.unpack_from(slot)
    start = HEADER.size
    words = slot[start : start + min(length, SLOT - start)].decode(errors="replace")
    if not words:
        return "starting"
    return f"{words}, in exchange {calls}" if calls else words
