"""How much memory this process may take: the machine's, or what its control group leaves.

Owns the reading of /proc/meminfo and of cgroup limits, versions 1 and 2. Takes the file system's
root as a path, so that tests use a tree of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from deskside.machine.files import ROOT, text

__all__ = ["Memory", "read_memory"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: `total` and `available` after limits, and the tightest `limit` if one binds."""

    total: int
    available: int
    limit: int | None = None


def read_memory(root: Path = ROOT) -> Memory:
    """Read what the machine has and what this process may still take.

    A group's page cache counts as free: the kernel gives it back before it refuses memory. What
    cannot be read counts as no limit, and a machine without /proc as having nothing.
    """
    total, available = _read_meminfo(root)
    limit = None
    for ceiling, used in _limits(root):
        if ceiling < total:
            limit = total = ceiling
        available = min(available, max(0, ceiling - used))
    return Memory(total, available, limit)


def _read_meminfo(root: Path) -> tuple[int, int]:
    """Return MemTotal and MemAvailable in bytes."""
    fields = {}
    for line in text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            fields[name] = int(words[0]) * 1024
    return fields.get("MemTotal", 0), fields.get("MemAvailable", fields.get("MemFree", 0))


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use, cache not counted, of every group that this process is in."""
    groups = root / "sys/fs/cgroup"
    for line in text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if number == "0":
            mounts = [groups, groups / "unified"]
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mounts = [groups / "memory"]
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for mount in mounts:
            yield from _walk(mount, PurePosixPath(place), names)


def _walk(
    mount: Path, place: PurePosixPath, names: tuple[str, str, str]
) -> Iterator[tuple[int, int]]:
    """Visit a group and all above it: the tightest of them binds.

    Inside a container the group's own path may not be mounted, or lead out of what is; the
    mount's top then stands for it.
    """
    limit_name, used_name, cache_name = names
    if ".." in place.parts:
        place = PurePosixPath("/")
    for group in (place, *place.parents):
        folder = mount / str(group).lstrip("/")
        limit, used = text(folder / limit_name).strip(), text(folder / used_name).strip()
        if limit.isdigit() and used.isdigit():
            cache = 0
            for line in text(folder / "memory.stat").splitlines():
                name, _, value = line.partition(" ")
                if name == cache_name and value.isdigit():
                    cache = int(value)
            yield int(limit), max(0, int(used) - cache)
