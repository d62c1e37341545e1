"""Whether this machine is fit for a model: one row for each check, with what helps.

Owns the judgement and the words. It is given facts and reads none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from deskside.errors import DesksideError
from deskside.kernels.tiers import Tiers
from deskside.machine.devices import PciDevice
from deskside.machine.fingerprint import cpu_list
from deskside.machine.machine import Machine
from deskside.machine.placement import Placement
from deskside.planning.amounts import amount
from deskside.planning.plan import Plan
from deskside.report.placement import threads_line

__all__ = ["Check", "Facts", "State", "as_json", "as_lines", "diagnose", "fit"]

OCCUPIED = 0.5
"""Load a core, on average, above which measured rates mean little."""
SLOW_TIERS = ("portable", "scalar")


class State(StrEnum):
    """How a check ended: only `fail` keeps a model from running."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """A row: what was looked at, what is there, what follows from it, and what changes it."""

    name: str
    state: State
    found: str
    means: str
    knob: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read. An error stands where a record could not be made."""

    machine: Machine
    devices: Sequence[PciDevice]
    tiers: Tiers
    tier_error: DesksideError | None
    placement: Placement | DesksideError
    bind_error: str | None
    plan: Plan | DesksideError
    huge_pages: str | None
    """The kernel's setting: always, madvise or never; None without any."""
    load: float
    """Runnable threads over the last minute."""
    leftovers: Sequence[str] = ()
    """What earlier runs of ours have left, one line each."""


def diagnose(facts: Facts) -> tuple[Check, ...]:
    """Judge the facts, one row a subject."""
    checks = [
        _kernels,
        _threads,
        _binding,
        _topology,
        _devices,
        _load,
        _memory,
        _huge_pages,
        _profile,
        _leftovers,
    ]
    return tuple(check(facts) for check in checks)


def as_lines(checks: Sequence[Check]) -> Iterator[str]:
    """Yield the rows, then the verdict."""
    for check in checks:
        yield f"{check.state.value:<5} {check.name:<11} {check.found}"
        knob = f" [{check.knob}]" if check.knob else ""
        yield f"{'':17} {check.means}{knob}"
    failed = [check.name for check in checks if check.state is State.FAIL]
    warned = sum(check.state is State.WARN for check in checks)
    if failed:
        yield f"This machine is not fit: {', '.join(failed)}."
    else:
        yield "This machine is fit." if not warned else f"This machine is fit, {warned} to look at."


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return verdict and rows as plain values."""
    return {"fit": fit(checks), "checks": [asdict(check) for check in checks]}


def fit(checks: Sequence[Check]) -> bool:
    """Whether nothing failed."""
    return all(check.state is not State.FAIL for check in checks)


def _kernels(facts: Facts) -> Check:
    means = "the compiled kernels' instruction set decides the speed, never a bit of the result"
    found = f"{facts.tiers.chosen}; here: {', '.join(facts.tiers.available)}"
    if facts.tier_error is not None:
        return Check("kernels", State.FAIL, found, str(facts.tier_error), "--tier auto")
    if facts.tiers.chosen in SLOW_TIERS:
        knob = "a processor with AVX2, or --tier auto where a tier was forced"
        return Check("kernels", State.WARN, found, "the slowest kernels are in use", knob)
    return Check("kernels", State.OK, found, means)


def _threads(facts: Facts) -> Check:
    if isinstance(facts.placement, DesksideError):
        return Check(
            "threads", State.FAIL, str(facts.placement), "a load is refused", "--threads auto"
        )
    found = "; ".join(threads_line(one) for one in facts.placement.ranks)
    if facts.placement.warnings:
        means = "; ".join(facts.placement.warnings)
        return Check("threads", State.WARN, found, means, "--threads, --tp")
    if any(one.coordinator_works for one in facts.placement.ranks):
        means = "with fewer than four cores a rank the coordinator computes too, untied"
        return Check("threads", State.OK, found, means, "--threads")
    return Check("threads", State.OK, found, "one compute thread a core", "--threads")


def _binding(facts: Facts) -> Check:
    if facts.bind_error is not None:
        means = f"a thread {facts.bind_error}"
        knob = "allow sched_setaffinity, or say --bind off to accept it"
        return Check("binding", State.WARN, "forbidden", means, knob)
    return Check("binding", State.OK, "threads may be tied to cores", "memory stays near", "--bind")


def _topology(facts: Facts) -> Check:
    topology = facts.machine.topology
    allowed, online = len(topology.cpus), len(topology.online or topology.cpus)
    threads = f"{allowed} CPUs" if allowed != len(topology.cores) else "no second threads"
    nodes = ", ".join(
        f"node {node.number}: CPUs {cpu_list(node.cpus) or 'none'}, {amount(node.memory_total)}"
        for node in topology.nodes
    )
    found = f"{topology.model}: {len(topology.cores)} cores ({threads}); {nodes}"
    losses = []
    if allowed < online:
        losses.append(f"{allowed} of {online} CPUs are allowed here (taskset, cpuset)")
    if topology.offline:
        losses.append(f"CPUs {cpu_list(topology.offline)} are switched off")
    if len(topology.nodes) > 1:
        for node in topology.nodes:
            if node.cpus and not node.memory_total:
                losses.append(f"node {node.number} has CPUs and no memory: its reads are remote")
            if not node.memory_allowed:
                losses.append(f"memory of node {node.number} is not allowed (cpuset)")
    if losses:
        knob = "allow this process the whole machine, if it may have it"
        return Check("topology", State.WARN, found, "; ".join(losses), knob)
    return Check("topology", State.OK, found, "all that is there may be used")


def _devices(facts: Facts) -> Check:
    if not facts.devices:
        return Check("devices", State.OK, "no GPU on the PCI bus", "everything runs on the CPU")
    found = ", ".join(
        f"{one.address} on node {'unknown' if one.node is None else one.node}"
        for one in facts.devices
    )
    lost = any(one.node is None for one in facts.devices)
    if lost and len(facts.machine.topology.nodes) > 1:
        means = "the firmware does not say to which socket a GPU belongs: ranks are spread in order"
        return Check("devices", State.WARN, found, means, "a BIOS update, or NUMA settings there")
    return Check("devices", State.OK, found, "ranks go to the node of their GPU")


def _load(facts: Facts) -> Check:
    cores = len(facts.machine.topology.cores)
    found = f"load {facts.load:.1f} on {cores} cores"
    if facts.load > OCCUPIED * cores:
        means = "other programs take cores and memory bandwidth: rates will be lower, and unsteady"
        return Check("load", State.WARN, found, means, "stop them, or --threads with fewer cores")
    return Check("load", State.OK, found, "the cores are free")


def _memory(facts: Facts) -> Check:
    memory = facts.machine.memory
    limited = ", limited by a control group" if memory.limit else ""
    found = f"{amount(memory.available)} of {amount(memory.total)} free{limited}"
    if isinstance(facts.plan, DesksideError):
        return Check("memory", State.FAIL, found, str(facts.plan), "--model")
    need = f"the model needs {amount(facts.plan.need)}"
    if not facts.plan.fits:
        return Check("memory", State.FAIL, found, need, facts.plan.knob or "")
    nodes = [node for node in facts.machine.topology.nodes if node.memory_total]
    if isinstance(facts.placement, Placement) and len(nodes) > 1:
        homes = {node for one in facts.placement.ranks for node in one.nodes}
        free = sum(node.memory_free for node in nodes if node.number in homes)
        if facts.plan.need > free:
            means = f"{need}, nodes {', '.join(map(str, sorted(homes)))} have {amount(free)} unused"
            knob = "drop the page cache before the start, or a part of the banks lies remote"
            return Check("memory", State.WARN, found, means, knob)
    return Check("memory", State.OK, found, need, "--kv-tokens")


def _huge_pages(facts: Facts) -> Check:
    found = f"transparent huge pages: {facts.huge_pages or 'not in this kernel'}"
    if facts.huge_pages in ("always", "madvise"):
        return Check("huge pages", State.OK, found, "banks are read faster", "--huge-pages")
    means = "reads of the banks wait for the page tables more often"
    knob = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root"
    return Check("huge pages", State.WARN, found, means, knob)


def _leftovers(facts: Facts) -> Check:
    if not facts.leftovers:
        return Check("leftovers", State.OK, "nothing", "no run of ours has left anything behind")
    means = "processes hold memory and cores, folders hold sockets that nobody answers"
    return Check("leftovers", State.WARN, "; ".join(facts.leftovers), means, "doctor --clean")


def _profile(facts: Facts) -> Check:
    """Whether this machine was measured, as the plan found it."""
    knob = "deskside profile"
    if isinstance(facts.plan, DesksideError):
        return Check("profile", State.OK, "not looked for", "there is no plan", knob)
    experts = facts.plan.experts
    if experts.rate is None:
        means = "no rate is predicted, and --backend hybrid needs --fetch-fraction"
        return Check("profile", State.WARN, str(experts.unpredicted), means, knob)
    found = f"predicted {experts.rate:.1f} tok/s without speculation, by memory traffic alone"
    return Check("profile", State.OK, found, "measured as this machine is used now", knob)
