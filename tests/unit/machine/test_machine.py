"""Machines that are trees of files."""

from pathlib import Path

import pytest

from deskside.machine.machine import read_machine
from deskside.machine.memory import Memory, read_memory
from deskside.machine.topology import Node, parse_cpu_list, read_topology

KIB, GIB = 1024, 1024**3


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def meminfo(total: int, available: int) -> dict[str, str]:
    lines = f"MemTotal: {total // KIB} kB\nMemFree: 5 kB\nMemAvailable: {available // KIB} kB\n"
    return {"proc/meminfo": lines}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return put(tmp_path, meminfo(64 * GIB, 48 * GIB))


def test_memory_without_limits(root: Path) -> None:
    assert read_memory(root) == Memory(64 * GIB, 48 * GIB)
    put(root, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"})
    assert read_memory(root) == Memory(64 * GIB, 48 * GIB)


def test_the_tightest_group_of_version_2_binds(root: Path) -> None:
    put(
        root,
        {
            "proc/self/cgroup": "0::/slice/unit\n",
            "sys/fs/cgroup/slice/memory.max": f"{10 * GIB}\n",
            "sys/fs/cgroup/slice/memory.current": f"{6 * GIB}\n",
            "sys/fs/cgroup/slice/memory.stat": f"anon 1\ninactive_file {1 * GIB}\n",
            "sys/fs/cgroup/slice/unit/memory.max": "max\n",
            "sys/fs/cgroup/slice/unit/memory.current": "4096\n",
        },
    )
    assert read_memory(root) == Memory(10 * GIB, 5 * GIB, 10 * GIB)
    put(
        root,
        {
            "sys/fs/cgroup/slice/unit/memory.max": f"{8 * GIB}",
            "sys/fs/cgroup/slice/unit/memory.current": f"{7 * GIB}",
        },
    )
    assert read_memory(root) == Memory(8 * GIB, 1 * GIB, 8 * GIB)


def test_version_1_beside_version_2(root: Path) -> None:
    unlimited = "9223372036854771712"
    put(
        root,
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/box\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": unlimited,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{4 * GIB}",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{5 * GIB}",
            "sys/fs/cgroup/memory/box/memory.stat": f"total_inactive_file {2 * GIB}\n",
        },
    )
    assert read_memory(root) == Memory(4 * GIB, 1 * GIB, 4 * GIB)


def test_a_container_sees_its_group_as_the_top(root: Path) -> None:
    put(
        root,
        {
            "proc/self/cgroup": "0::/../../host/path\n",
            "sys/fs/cgroup/memory.max": f"{2 * GIB}",
            "sys/fs/cgroup/memory.current": f"{3 * GIB}",
        },
    )
    assert read_memory(root) == Memory(2 * GIB, 0, 2 * GIB)


def test_what_is_not_there_or_makes_no_sense(tmp_path: Path) -> None:
    assert read_memory(tmp_path) == Memory(0, 0)
    put(tmp_path, {"proc/meminfo": "MemTotal: many kB\nMemFree: 7 kB\n:\n"})
    assert read_memory(tmp_path) == Memory(0, 7 * KIB)
    flat = read_topology(tmp_path)
    assert flat.cpus == (0,)
    assert flat.cores == ((0,),)
    assert flat.nodes == (Node(0, (0,), 0, 0),)
    assert flat.quota is None


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("", ()), ("5", (5,)), ("x,2-,3", (2, 3))],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


def test_two_sockets_with_threads(tmp_path: Path) -> None:
    """Eight CPUs: cores {0,4} {1,5} on node 0, {2,6} {3,7} on node 1; 3 is not allowed."""
    files = {
        "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-2,4-7,12\nMems_allowed_list:\t0-1\n",
        "proc/cpuinfo": "processor : 0\nmodel name : Some CPU @ 2 GHz\nflags : avx2 amx_tile\n\n"
        "processor : 1\nflags : none\n",
        "sys/devices/system/cpu/online": "0-7\n",
        "sys/devices/system/node/online": "0-1\n",
        "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
        "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 8 kB\nNode 0 MemFree: 4 kB\n",
        "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal: 16 kB\nNode 1 MemFree: 2 kB\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
    }
    for cpu in range(8):
        name = "core_cpus_list" if cpu % 2 else "thread_siblings_list"
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/{name}"] = f"{cpu % 4},{cpu % 4 + 4}\n"
    found = read_topology(put(tmp_path, files))
    assert found.model == "Some CPU @ 2 GHz"
    assert found.cpus == (0, 1, 2, 4, 5, 6, 7)
    assert found.cores == ((0, 4), (1, 5), (2, 6), (7,))
    assert found.nodes == (
        Node(0, (0, 1, 4, 5), 8 * KIB, 4 * KIB),
        Node(1, (2, 6, 7), 16 * KIB, 2 * KIB),
    )
    assert found.flags == {"avx2", "amx_tile"}
    assert found.quota == 1.5


def test_quota_of_version_1(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/cpu/cpu.cfs_"
    put(tmp_path, {f"{base}quota_us": "-1\n", f"{base}period_us": "100000\n"})
    assert read_topology(tmp_path).quota is None
    put(tmp_path, {f"{base}quota_us": "200000\n"})
    assert read_topology(tmp_path).quota == 2.0
    put(tmp_path, {"sys/fs/cgroup/cpu.max": "max 100000\n"})
    assert read_topology(tmp_path).quota is None


def test_this_machine_can_be_read() -> None:
    machine = read_machine()
    assert 0 < machine.memory.available <= machine.memory.total
    assert machine.topology.cpus
    assert sum(len(core) for core in machine.topology.cores) == len(machine.topology.cpus)
