"""On which nodes the pages of some memory lie, as numa_maps tells it.

Owns the reading of /proc/self/maps and /proc/self/numa_maps. Takes the file system's root as a
path, so that tests use a tree of their own.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from deskside.machine.files import ROOT, text

__all__ = ["read_residency"]

PAGES = re.compile(r"N(\d+)=(\d+)")
PAGE_SIZE = re.compile(r"kernelpagesize_kB=(\d+)")


def read_residency(ranges: Iterable[tuple[int, int]], root: Path = ROOT) -> Mapping[int, int]:
    """Return bytes by node of the mappings that hold any of these addresses, first and end.

    The kernel joins mappings that lie side by side and counts pages by mapping, so that what is
    counted may be a little more than what was asked for. Empty where the kernel does not say.
    """
    asked = list(ranges)
    wanted = {
        start
        for start, end in _mappings(root)
        if any(start < last and first < end for first, last in asked)
    }
    found: Counter[int] = Counter()
    for line in text(root / "proc/self/numa_maps").splitlines():
        address, _, rest = line.partition(" ")
        if not address or int(address, 16) not in wanted:
            continue
        size = PAGE_SIZE.search(rest)
        page = int(size[1]) * 1024 if size else 4096
        for node, pages in PAGES.findall(rest):
            found[int(node)] += int(pages) * page
    return dict(sorted(found.items()))


def _mappings(root: Path) -> Iterable[tuple[int, int]]:
    for line in text(root / "proc/self/maps").splitlines():
        first, dash, last = line.partition(" ")[0].partition("-")
        if dash:
            yield int(first, 16), int(last, 16)
