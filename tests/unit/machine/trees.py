"""Machines as trees of files, for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path

GIB = 1024**3


def put(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine_files(
    nodes: Mapping[int, str],
    cores: Sequence[Sequence[int]],
    *,
    allowed: str,
    online: str,
    memory: Mapping[int, int] | None = None,
    mems: str | None = None,
    distances: Mapping[int, str] | None = None,
    offline: str = "",
    devices: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Return the files of a machine: CPU lists by node, cores by their CPUs, memory in GiB."""
    listed = ",".join(map(str, nodes))
    files = {
        "proc/cpuinfo": "processor : 0\nmodel name : Some CPU\nflags : avx2\n\n",
        "proc/self/status": (
            f"Cpus_allowed_list:\t{allowed}\nMems_allowed_list:\t{mems or listed}\n"
        ),
        "sys/devices/system/cpu/online": online + "\n",
        "sys/devices/system/cpu/offline": offline + "\n",
        "sys/devices/system/node/online": listed + "\n",
    }
    for node, cpus in nodes.items():
        folder = f"sys/devices/system/node/node{node}"
        gib = 128 if memory is None else memory.get(node, 0)
        kib = gib * 1024**2
        files[f"{folder}/cpulist"] = cpus + "\n"
        files[f"{folder}/meminfo"] = (
            f"Node {node} MemTotal: {kib} kB\nNode {node} MemFree: {kib // 2} kB\n"
        )
        flat = " ".join("10" if other == node else "21" for other in nodes)
        files[f"{folder}/distance"] = (distances or {}).get(node, flat) + "\n"
    for core in cores:
        for cpu in core:
            name = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            files[name] = ",".join(map(str, core)) + "\n"
    for address, node in (devices or {}).items():
        files |= device_files(address, node)
    return files


def device_files(
    address: str, node: int, local: str = "", vendor: str = "0x10de"
) -> dict[str, str]:
    folder = f"sys/bus/pci/devices/{address}"
    return {
        f"{folder}/vendor": vendor + "\n",
        f"{folder}/class": "0x030200\n",
        f"{folder}/numa_node": f"{node}\n",
        f"{folder}/local_cpulist": local + "\n",
    }


def desk() -> dict[str, str]:
    """Two sockets of twenty cores, forty threads each, and four cards, two on each socket."""
    return machine_files(
        {0: "0-19,40-59", 1: "20-39,60-79"},
        [(cpu, cpu + 40) for cpu in range(40)],
        allowed="0-79",
        online="0-79",
        memory={0: 251, 1: 251},
        devices={
            "0000:17:00.0": 0,
            "0000:65:00.0": 0,
            "0000:b3:00.0": 1,
            "0000:ca:00.0": 1,
        },
    )
