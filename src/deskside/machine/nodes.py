"""Which NUMA nodes serve which rank.

A domain is a node with memory and the cores that reach it best. Ranks go to the domain of their
device, or are spread evenly where devices say nothing. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from deskside.machine.topology import Node, Topology

__all__ = ["Domain", "domains", "homes"]

REMOTE = 20
"""The distance taken where the machine names none."""


@dataclass(frozen=True, slots=True)
class Domain:
    """A node that memory may be taken from, and the allowed cores nearest to it."""

    node: int
    cores: tuple[tuple[int, ...], ...]


def domains(topology: Topology) -> tuple[Domain, ...]:
    """Return the domains that have cores, by node.

    CPUs of a node without memory, or whose memory a cpuset forbids, belong to the nearest node
    that has some. Where no node tells its memory all count as having it.
    """
    nodes = topology.nodes
    holders = [n for n in nodes if n.memory_total and n.memory_allowed]
    holders = holders or [n for n in nodes if n.memory_allowed and n.cpus]
    holders = holders or [n for n in nodes if n.cpus]
    members: dict[int, set[int]] = {}
    for node in nodes:
        if node.cpus:
            members.setdefault(_nearest(node, holders), set()).update(node.cpus)
    known = set().union(*members.values()) if members else set()
    first = min(members, default=nodes[0].number)
    members.setdefault(first, set()).update(cpu for cpu in topology.cpus if cpu not in known)
    found = (
        Domain(number, tuple(core for core in topology.cores if core[0] in cpus))
        for number, cpus in sorted(members.items())
    )
    return tuple(domain for domain in found if domain.cores)


def _nearest(node: Node, holders: Sequence[Node]) -> int:
    """Return the number of the node whose memory is the fewest steps away, itself first."""

    def steps(other: Node) -> tuple[int, int]:
        local = 10 if node.number == other.number else REMOTE
        return node.distances.get(other.number, local), other.number

    return min(holders, key=steps).number


def homes(
    areas: Sequence[Domain], ranks: int, devices: Sequence[int | None]
) -> tuple[list[tuple[Domain, ...]], list[str]]:
    """Return each rank's domains, and what that leaves unused.

    With at least as many ranks as domains each rank has one: its device's, or with no device known
    its part of an even spread in order. With fewer ranks they divide all domains, and a rank's
    first is its device's.
    """
    by_node = {area.node: area for area in areas}
    near = [by_node.get(n) if n is not None else None for n in (*devices, *[None] * ranks)][:ranks]
    if ranks < len(areas):
        return _divide(areas, near), []
    if not any(near):
        return [(areas[rank * len(areas) // ranks],) for rank in range(ranks)], []
    taken = [area.node for area in near if area]
    found: list[tuple[Domain, ...]] = []
    for area in near:
        emptiest = min(areas, key=lambda a: (taken.count(a.node), a.node))
        found.append((area or emptiest,))
        if area is None:
            taken.append(emptiest.node)
    idle = [area for area in areas if area.node not in taken]
    return found, [
        f"node {area.node} has no rank: all devices are elsewhere, so its {len(area.cores)} cores "
        "and its memory stay unused"
        for area in idle
    ]


def _divide(areas: Sequence[Domain], near: Sequence[Domain | None]) -> list[tuple[Domain, ...]]:
    """Give each of a few ranks an equal number of domains, its device's first."""
    ranks = len(near)
    free = list(areas)
    found: list[list[Domain]] = []
    for area in near:
        first = area if area in free else None
        if first is not None:
            free.remove(first)
        found.append([first] if first is not None else [])
    for rank, own in enumerate(found):
        want = (rank + 1) * len(areas) // ranks - rank * len(areas) // ranks
        while len(own) < want:
            own.append(free.pop(0))
    return [tuple(own) for own in found]
