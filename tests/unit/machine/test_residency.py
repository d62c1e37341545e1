"""Pages by node, from text as the kernel writes it."""

from pathlib import Path

import torch

from deskside.machine.residency import read_residency
from tests.unit.machine.trees import put

MAPS = """\
55d0c0000000-55d0c0021000 r-xp 00000000 08:01 1311 /usr/bin/python3
7f1000000000-7f1080000000 rw-p 00000000 00:00 0
7f1080000000-7f10c0000000 rw-p 00000000 00:00 0
7f2000000000-7f2000200000 rw-p 00000000 00:00 0 [heap]
"""
NUMA_MAPS = """\
55d0c0000000 default file=/usr/bin/python3 mapped=33 N0=33 kernelpagesize_kB=4
7f1000000000 default anon=524288 dirty=524288 active=0 N0=524000 N1=288 kernelpagesize_kB=4
7f1080000000 default anon=262144 dirty=262144 N1=262144 kernelpagesize_kB=4
7f2000000000 default huge anon=1 dirty=1 N1=1 kernelpagesize_kB=2048
"""


def test_pages_are_counted_by_node(tmp_path: Path) -> None:
    root = put(tmp_path, {"proc/self/maps": MAPS, "proc/self/numa_maps": NUMA_MAPS})
    first = [(0x7F1000200000, 0x7F1001000000)]
    assert read_residency(first, root) == {0: 524000 * 4096, 1: 288 * 4096}
    both = [*first, (0x7F107FFFF000, 0x7F1080001000)]
    assert read_residency(both, root) == {0: 524000 * 4096, 1: (288 + 262144) * 4096}
    assert read_residency([(0x7F2000000000, 0x7F2000000001)], root) == {1: 2048 * 1024}
    assert read_residency([(0x7F3000000000, 0x7F3000000001)], root) == {}


def test_a_kernel_that_does_not_say(tmp_path: Path) -> None:
    assert read_residency([(0, 1 << 47)], put(tmp_path, {"proc/self/maps": MAPS})) == {}


def test_this_process() -> None:
    memory = torch.ones(64 * 1024**2, dtype=torch.uint8)
    if not Path("/proc/self/numa_maps").exists():
        return
    found = read_residency([(memory.data_ptr(), memory.data_ptr() + memory.nbytes)])
    assert sum(found.values()) >= memory.nbytes
