"""One shard's safetensors header: what lies where, checked against the file's own size.

Owns the format (8 bytes of length, JSON, payload) and refuses every file whose header and payload
do not tile each other exactly. Knows no model; reads no payload.
"""

import math
import os
import stat
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from deskside.checkpoint.strict import AGAIN, is_count, parse_object, shown
from deskside.errors import CheckpointError
from deskside.layout.names import ITEM_BYTES

__all__ = ["LENGTH_BYTES", "MOST_HEADER", "Stored", "read_header"]

LENGTH_BYTES = 8
MOST_HEADER = 100_000_000
"""Bytes; the limit of the format's own library."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a shard: `offset` counts bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(path: Path) -> tuple[Stored, ...]:
    """Return a shard's tensors in file order, reading only the header.

    Raises:
        CheckpointError: the file is truncated or longer than its header says, or the header is
            absurd, no JSON, or has offsets that overlap, leave gaps or lie outside the file.
    """
    data, size = _header_bytes(path)
    base = LENGTH_BYTES + len(data)
    content = parse_object(data, f"{path}: header")
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path}: header: '__metadata__' must be an object; {AGAIN}")
    entries = [_entry(path, name, value, base) for name, value in content.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    _check_tiling(path, entries, base, size)
    return tuple(entries)


def _header_bytes(path: Path) -> tuple[bytes, int]:
    """Return the raw header and the size of the file."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path}: is no regular file; put the shard itself there")
        with path.open("rb") as file:
            prefix = file.read(LENGTH_BYTES)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < LENGTH_BYTES:
                raise CheckpointError(
                    f"{path}: has {status.st_size} bytes, too few for a header; {AGAIN}"
                )
            if not 2 <= length <= MOST_HEADER:
                raise CheckpointError(
                    f"{path}: header length is {length} bytes, need 2 to {MOST_HEADER}; {AGAIN}"
                )
            if LENGTH_BYTES + length > status.st_size:
                raise CheckpointError(
                    f"{path}: is truncated inside its header: {status.st_size} bytes there, "
                    f"{LENGTH_BYTES + length} needed; {AGAIN}"
                )
            return file.read(length), status.st_size
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def _entry(path: Path, name: str, value: Any, base: int) -> Stored:
    """Check one header entry by itself."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, name, "entry must hold dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str):
        raise _damaged(path, name, "dtype must be a string")
    if not isinstance(shape, list) or len(shape) > 8 or not all(map(is_count, shape)):
        raise _damaged(path, name, "shape must list sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
        raise _damaged(path, name, "data_offsets must be two positions")
    begin, end = offsets
    if end < begin:
        raise _damaged(path, name, f"ends at {end} before it begins")
    nbytes = math.prod(shape) * ITEM_BYTES.get(dtype, 0)
    if dtype in ITEM_BYTES and nbytes != end - begin:
        reason = f"{end - begin} bytes set aside, {dtype} {shape} needs {nbytes}"
        raise _damaged(path, name, reason)
    return Stored(name, dtype, tuple(shape), base + begin, end - begin)


def _damaged(path: Path, name: str, reason: str) -> CheckpointError:
    return CheckpointError(f"{path}: tensor {shown(name)}: {reason}; {AGAIN}")


def _check_tiling(path: Path, entries: list[Stored], base: int, size: int) -> None:
    """Refuse gaps, overlaps, and a payload that is not exactly as long as the entries."""
    if not entries:
        raise CheckpointError(f"{path}: header names no tensor; {AGAIN}")
    for entry in entries:
        end = entry.offset + entry.nbytes
        if end > size:
            reason = f"ends at byte {end}, the file has {size}: truncated, or out of range"
            raise _damaged(path, entry.name, reason)
    if entries[0].offset != base:
        raise _damaged(path, entries[0].name, f"gap of {entries[0].offset - base} bytes before it")
    for before, after in pairwise(entries):
        difference = after.offset - before.offset - before.nbytes
        if difference:
            kind = "gap of" if difference > 0 else "overlap of"
            other = shown(before.name)
            raise _damaged(path, after.name, f"{kind} {abs(difference)} bytes with {other}")
    end = entries[-1].offset + entries[-1].nbytes
    if end != size:
        raise _damaged(path, entries[-1].name, f"{size - end} trailing bytes after it")
