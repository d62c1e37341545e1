"""Which CPUs the coordinator and the workers of each rank get: one frozen record.

Pure: it takes the machine's topology as it was before any affinity was set, keeps it, and binds
nothing itself. Physical cores come before their second threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deskside.errors import InputError
from deskside.machine.nodes import Domain, domains, homes
from deskside.machine.topology import Topology

__all__ = ["Placement", "RankPlace", "place"]

LEAST_FOR_COORDINATOR = 4
"""Cores of a rank from which the coordinator has one to itself."""
MOST_SPARE = 2

Core = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank's part of the machine.

    `cpus` is all it may run on; `coordinator` the CPUs of the thread that steps, which has its own
    core and the spare ones unless it works too. `workers` holds the CPUs of each worker: one, its
    core's first, or all the rank's where cores are too few to tie threads to them. `spin` says
    whether idle workers may wait for work without giving up their core. `device_node` is the
    node of the rank's device where known.
    """

    rank: int
    nodes: tuple[int, ...]
    cpus: tuple[int, ...]
    coordinator: tuple[int, ...]
    workers: tuple[tuple[int, ...], ...]
    coordinator_works: bool
    spin: bool
    device_node: int | None = None

    @property
    def threads(self) -> int:
        """Threads that compute."""
        return len(self.workers) + self.coordinator_works

    def loose(self) -> "RankPlace":
        """Return the same threads, each free to run on all CPUs of the rank."""
        workers = (self.cpus,) * len(self.workers)
        return replace(self, coordinator=self.cpus, workers=workers)


@dataclass(frozen=True, slots=True)
class Placement:
    """All ranks of this machine, the topology they were placed on, and what is lost."""

    topology: Topology
    ranks: tuple[RankPlace, ...]
    warnings: tuple[str, ...] = ()


def place(
    topology: Topology,
    ranks: int = 1,
    devices: Sequence[int | None] = (),
    threads: int | None = None,
) -> Placement:
    """Divide the allowed cores among ranks.

    Args:
        topology: the machine as this process may use it.
        ranks: ranks on this machine.
        devices: the node of each rank's device, None where it is not known.
        threads: compute threads of a rank, or None for what its cores allow.

    Raises:
        InputError: more threads than a rank has CPUs.
    """
    areas = domains(topology)
    assigned, warnings = homes(areas, ranks, devices)
    places = []
    shares = _shares(assigned)
    for rank, (own, cores) in enumerate(zip(assigned, shares, strict=True)):
        device = devices[rank] if rank < len(devices) else None
        crowded = any(set(cores) & set(other) for n, other in enumerate(shares) if n != rank)
        quota = None if topology.quota is None else topology.quota / ranks
        nodes = tuple(domain.node for domain in own)
        places.append(_rank(rank, nodes, cores, device, threads, quota, crowded))
    warnings += _losses(topology, places, threads)
    return Placement(topology, tuple(places), tuple(warnings))


def _shares(assigned: Sequence[Sequence[Domain]]) -> list[list[Core]]:
    """Return each rank's cores: equal parts of every domain, or one in turn where there are few."""
    sharers: dict[int, list[int]] = {}
    for rank, own in enumerate(assigned):
        for domain in own:
            sharers.setdefault(domain.node, []).append(rank)
    shares: list[list[Core]] = [[] for _ in assigned]
    for rank, own in enumerate(assigned):
        for domain in own:
            count, turn = len(sharers[domain.node]), sharers[domain.node].index(rank)
            part = len(domain.cores) // count
            if part:
                shares[rank] += domain.cores[turn * part : (turn + 1) * part]
            else:
                shares[rank].append(domain.cores[turn % len(domain.cores)])
    return shares


def _rank(
    rank: int,
    nodes: tuple[int, ...],
    cores: list[Core],
    device: int | None,
    threads: int | None,
    quota: float | None,
    crowded: bool,
) -> RankPlace:
    """Give a rank's cores to its coordinator and its workers."""
    cpus = tuple(sorted(cpu for core in cores for cpu in core))
    granted = len(cores) if quota is None else max(1, min(len(cores), int(quota)))
    if threads is None:
        alone = granted >= LEAST_FOR_COORDINATOR
        spare = max(0, min(MOST_SPARE, (granted - 8) // 4))
        count = granted - 1 - spare if alone else granted
    else:
        if threads > len(cpus):
            have = f"{len(cpus)} CPU" + ("s" if len(cpus) > 1 else "")
            raise InputError(
                f"--threads {threads}: rank {rank} may use {have}; use --threads {len(cpus)} or "
                "auto, or allow this process more"
            )
        alone = len(cores) >= LEAST_FOR_COORDINATOR and threads < len(cores)
        count = threads
    spin = not crowded and (quota is None or count <= quota)
    if alone:
        worked = cores[len(cores) - count :]  # the first ones are nearest to the device
        workers = tuple(core[:1] for core in worked)
        coordinator = tuple(cpu for cpu in cpus if all(cpu not in core for core in worked))
    else:
        workers, coordinator = (cpus,) * (count - 1), cpus
    return RankPlace(rank, nodes, cpus, coordinator, workers, not alone, spin, device)


def _losses(topology: Topology, places: list[RankPlace], threads: int | None) -> list[str]:
    """Say what this placement gives away."""
    found = []
    for one in places:
        if one.device_node is not None and one.device_node not in one.nodes:
            found.append(
                f"rank {one.rank}: its device is on node {one.device_node}, its cores are on "
                f"{_nodes(one.nodes)}: experts cross the socket link on their way to the device"
            )
        if len(one.nodes) > 1:
            found.append(
                f"rank {one.rank} spans {_nodes(one.nodes)}: about "
                f"{100 - 100 // len(one.nodes)}% of its expert reads are remote; one rank a node "
                f"(--tp {len(one.nodes)}) keeps them local"
            )
    cores = {cpu for one in places for cpu in one.cpus}
    if sum(len(one.cpus) for one in places) > len(cores):
        found.append(
            f"{len(places)} ranks share {len(cores)} CPUs: workers give way to each other and "
            "never wait spinning; fewer ranks (--tp) would be faster"
        )
    if topology.quota is not None and topology.quota < len(topology.cores):
        asked = "" if threads is None else f" --threads {threads} is more than that:"
        need = sum(one.threads for one in places)
        if threads is None or need > topology.quota:
            found.append(
                f"a control group grants {topology.quota:g} of {len(topology.cores)} cores:"
                f"{asked} {need} compute threads run; raise the limit to use the rest"
            )
    return found


def _nodes(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers))
    return f"node {listed}" if len(numbers) == 1 else f"nodes {listed}"
