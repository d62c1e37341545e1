"""Which CPUs this process may use, how they form cores and nodes, and what they can compute.

Owns the reading of sysfs, /proc/cpuinfo and the affinity mask. Takes the file system's root as a
path, so that tests use a tree of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deskside.machine.files import ROOT, text

__all__ = ["Node", "Topology", "parse_cpu_list", "read_topology"]


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node: its allowed CPUs, and its memory in bytes.

    `distances` maps nodes to the kernel's distances, 10 being local. `memory_allowed` says whether
    a cpuset lets this process take memory here.
    """

    number: int
    cpus: tuple[int, ...]
    memory_total: int
    memory_free: int
    distances: Mapping[int, int] = field(default_factory=dict)
    memory_allowed: bool = True


@dataclass(frozen=True, slots=True)
class Topology:
    """The allowed part of the machine.

    `cores` lists physical cores by their allowed CPUs, lowest first. `quota` is the CPU time a
    control group grants, in CPUs, or None. `flags` are the instruction-set flags of /proc/cpuinfo.
    `online` are the CPUs that run, allowed or not, `offline` those that are there and do not.
    """

    model: str
    cpus: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]
    nodes: tuple[Node, ...]
    flags: frozenset[str]
    quota: float | None = None
    online: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


def read_topology(root: Path = ROOT) -> Topology:
    """Read the allowed CPUs, their cores and nodes. What cannot be read is taken as flat."""
    information = _cpu_information(root)
    cpus = _allowed(root)
    flags = information.get("flags", information.get("Features", ""))
    return Topology(
        model=information.get("model name", "unknown"),
        cpus=cpus,
        cores=_cores(root, cpus),
        nodes=_nodes(root, cpus),
        flags=frozenset(flags.split()),
        quota=_quota(root),
        online=_listed(root, "online") or cpus,
        offline=_listed(root, "offline"),
    )


def parse_cpu_list(listed: str) -> tuple[int, ...]:
    """Return the numbers of a kernel list such as "0-3,8,10-11", ascending."""
    found: set[int] = set()
    for part in listed.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def _allowed(root: Path) -> tuple[int, ...]:
    """Return the CPUs of the affinity mask, or all that are online."""
    online = _listed(root, "online")
    mask = _allowed_list(root, "Cpus_allowed_list")
    if mask is None:
        return online or (0,)
    return tuple(cpu for cpu in mask if cpu in online) if online else mask


def _listed(root: Path, kind: str) -> tuple[int, ...]:
    """Return the CPUs that the kernel lists as online, offline or present."""
    return parse_cpu_list(text(root / "sys/devices/system/cpu" / kind))


def _allowed_list(root: Path, field_name: str) -> tuple[int, ...] | None:
    """Return a list of /proc/self/status, or None where it is not there."""
    for line in text(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == field_name:
            return parse_cpu_list(value)
    return None


def _cores(root: Path, cpus: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Group the allowed CPUs that are threads of one core."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus:
        place = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = parse_cpu_list(
            text(place / "core_cpus_list") or text(place / "thread_siblings_list")
        )
        groups.setdefault(siblings or (cpu,), []).append(cpu)
    return tuple(sorted(tuple(group) for group in groups.values()))


def _nodes(root: Path, cpus: tuple[int, ...]) -> tuple[Node, ...]:
    """Return all nodes that are online; one that holds everything without sysfs."""
    folder = root / "sys/devices/system/node"
    numbers = parse_cpu_list(text(folder / "online"))
    memory_nodes = _allowed_list(root, "Mems_allowed_list")
    nodes = []
    for number in numbers:
        place = folder / f"node{number}"
        members = parse_cpu_list(text(place / "cpulist"))
        memory = _node_memory(text(place / "meminfo"))
        distances = [int(word) for word in text(place / "distance").split() if word.isdigit()]
        nodes.append(
            Node(
                number,
                tuple(cpu for cpu in members if cpu in cpus),
                memory.get("MemTotal", 0),
                memory.get("MemFree", 0),
                dict(zip(numbers, distances, strict=False)),
                memory_nodes is None or number in memory_nodes,
            )
        )
    return tuple(nodes) or (Node(0, cpus, 0, 0),)


def _node_memory(listed: str) -> dict[str, int]:
    """Parse lines such as "Node 0 MemFree:  1024 kB" into bytes."""
    found = {}
    for line in listed.splitlines():
        head, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[head.split()[-1]] = int(words[0]) * 1024
    return found


def _quota(root: Path) -> float | None:
    """Return the CPU time granted by the control group, in CPUs."""
    groups = root / "sys/fs/cgroup"
    words = text(groups / "cpu.max").split()
    if len(words) != 2:
        words = [
            text(groups / "cpu" / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")
        ]
    if all(word.isdigit() for word in words) and int(words[1]) > 0:
        return int(words[0]) / int(words[1])
    return None


def _cpu_information(root: Path) -> dict[str, str]:
    """Return the fields of the first processor of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in text(root / "proc/cpuinfo").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
        elif fields:
            break
    return fields
