"""A placement as lines of text: who computes where, and on which nodes the banks lie.

Owns the words; decides nothing.
"""

from collections.abc import Iterator, Mapping

from deskside.machine.fingerprint import cpu_list
from deskside.machine.placement import Placement, RankPlace
from deskside.planning.amounts import amount

__all__ = ["astray", "residency_line", "threads_line"]

SMALL = 0.05


def threads_line(one: RankPlace) -> str:
    """Return the workers and the coordinator of a rank."""
    tied = {cpu for cpus in one.workers for cpu in cpus}
    if one.coordinator_works:
        count = f"{one.threads} thread" + ("s" if one.threads > 1 else "")
        who = f"{count} on CPUs {cpu_list(one.cpus)}, the coordinator among them"
    else:
        ties = "one a core" if all(len(cpus) == 1 for cpus in one.workers) else "untied"
        who = (
            f"{len(one.workers)} workers on CPUs {cpu_list(tuple(sorted(tied)))} ({ties}), "
            f"coordinator on CPUs {cpu_list(one.coordinator)}"
        )
    nodes = ", ".join(map(str, one.nodes))
    return f"rank {one.rank}, node {nodes}: {who}" + ("" if one.spin else "; idle ones sleep")


def residency_line(placed: Mapping[int, int]) -> str:
    """Return where banks lie, such as `banks: node 0 73.31 GiB, node 1 0 B`."""
    return "banks: " + ", ".join(f"node {node} {amount(size)}" for node, size in placed.items())


def astray(placement: Placement, placed: Mapping[int, int]) -> Iterator[str]:
    """Say that banks lie where no rank computes."""
    homes = {node for one in placement.ranks for node in one.nodes}
    total = sum(placed.values())
    away = sum(size for node, size in placed.items() if node not in homes)
    if total and away > SMALL * total:
        yield (
            f"{amount(away)} of {amount(total)} of the banks lie on other nodes than the workers: "
            "every read of them crosses the socket link; free memory on the workers' nodes (their "
            "page cache too) before the start"
        )
