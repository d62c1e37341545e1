"""One frozen plan from a model's shapes, a machine's facts and the options, before any weight.

Owns the bytes of every component, the capacity of the cache, and the verdict with need, have and
knob. A load does what the plan says. All arithmetic but `plan_folder`, which reads config.json and
the machine for it.
"""

from dataclasses import dataclass, replace
from typing import Any

from deskside.config.engine import EngineOptions
from deskside.errors import CapacityError, InputError, ProfileError
from deskside.layout.cuts import RANK_COUNTS
from deskside.layout.folder import resolve
from deskside.layout.kv import PAGE, check_format, pages_for
from deskside.machine.machine import Machine, read_machine
from deskside.planning.amounts import amount
from deskside.planning.capacity import Capacity, auto_pages, largest, snapshots_for
from deskside.planning.components import (
    ComponentBytes,
    components_of,
    dense_bytes,
    expert_bytes,
)
from deskside.planning.experts import UNKNOWN, ExpertPlan, Need, plan_experts
from deskside.planning.options import PlanOptions
from deskside.planning.profile import Rates
from deskside.planning.rate import Traffic
from deskside.planning.report import as_json, as_lines
from deskside.planning.workspace import workspace_bytes
from deskside.spec import DrafterSpec, ModelSpec, read_config
from deskside.speculate.costs import MEASURED_ROWS

__all__ = ["Plan", "make_plan", "plan_folder"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a load will take and hold. Bytes are of one rank unless they say otherwise."""

    spec: ModelSpec
    machine: Machine
    options: PlanOptions
    components: tuple[ComponentBytes, ...]
    capacity: Capacity
    workspace: int
    experts: ExpertPlan
    knob: str | None

    @property
    def weights(self) -> int:
        """Bytes of weights held by one rank."""
        return sum(component.held for component in self.components)

    @property
    def stored(self) -> int:
        """Bytes of weights in the checkpoint."""
        return sum(component.stored for component in self.components)

    @property
    def need(self) -> int:
        """Bytes that all ranks of this machine take together."""
        rank = self.weights + self.capacity.nbytes + self.workspace + self.experts.nbytes
        return rank * self.options.here

    @property
    def have(self) -> int:
        """Bytes that this process may still take."""
        return self.machine.memory.available

    @property
    def fits(self) -> bool:
        """Whether need is at most have."""
        return self.need <= self.have

    @property
    def kv_pages(self) -> int:
        """Pages of 128 tokens."""
        return self.capacity.pages

    @property
    def kv_tokens(self) -> int:
        """Tokens of all sequences together."""
        return self.capacity.tokens

    @property
    def max_running(self) -> int:
        """Sequence slots."""
        return self.capacity.slots

    def require_fit(self) -> None:
        """Refuse a load that would not fit.

        Raises:
            CapacityError: with need, have and the option to change.
        """
        if not self.fits:
            parts = (
                f"weights {amount(self.weights)}, KV {amount(self.capacity.nbytes)}, "
                f"workspace {amount(self.workspace)}"
            )
            if self.experts.slots:
                parts += f", expert slots {amount(self.experts.nbytes)}"
            raise CapacityError(
                f"does not fit: need {amount(self.need)} ({parts}), have {amount(self.have)}; "
                f"{self.knob}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values, all sizes in bytes."""
        return as_json(self)

    def report(self) -> str:
        """Return the plan as lines to read."""
        return "\n".join(as_lines(self))


def make_plan(
    spec: ModelSpec,
    machine: Machine,
    options: PlanOptions,
    measured: Rates | ProfileError = UNKNOWN,
) -> Plan:
    """Plan a load.

    Args:
        spec: the model.
        machine: this one.
        options: what was asked for.
        measured: rates of this model on this machine, or why there are none.

    Raises:
        ProfileError: the rates decide, and there are none.
        CapacityError: fewer expert slots than one step can need.
        InputError: the options cannot be obeyed for this model whatever the memory: a cut through
            a block or a head, or a cache format that its widths do not allow.
    """
    check_format(spec, options.kv_format)
    _check_ranks(spec, options.tensor_parallel)
    components = components_of(spec, options.tensor_parallel, options.drafter)
    pages = _pages(spec, machine, options, components)
    capacity = _capacity(spec, options, pages)
    workspace = _workspace(spec, options, pages)
    held = sum(component.held for component in components) + capacity.nbytes + workspace
    spare = machine.memory.available // options.here - held
    experts = plan_experts(
        spec, options.experts, _need(spec, options, components, max(spare, 0)), measured
    )
    plan = Plan(spec, machine, options, components, capacity, workspace, experts, None)
    return plan if plan.fits else replace(plan, knob=_knob(plan))


def plan_folder(
    model: str, options: EngineOptions, measured: Rates | ProfileError = UNKNOWN
) -> Plan:
    """Plan a load of a folder or built-in name on this machine; config.json is enough.

    `measured` is as `make_plan` takes it.

    Raises:
        InputError: no such folder, or options that cannot be obeyed.
        CheckpointError: config.json is missing or not served.
    """
    folder = resolve(model)
    spec = ModelSpec.from_config(read_config(folder), str(folder / "config.json"))
    return make_plan(spec, read_machine(), PlanOptions.of(options), measured)


def _check_ranks(spec: ModelSpec, ranks: int) -> None:
    """Refuse ranks that cannot continue a tree of sums, or would cut a head or an output group."""
    if ranks not in RANK_COUNTS:
        listed = ", ".join(map(str, RANK_COUNTS))
        raise InputError(f"--tp {ranks}: sums are trees of pairs, so use one of {listed}")
    for what, count in (("output groups", spec.o_groups), ("attention heads", spec.heads)):
        if count % ranks:
            legal = max(n for n in RANK_COUNTS if count % n == 0 and n < ranks)
            raise InputError(
                f"--tp {ranks} cannot share {count} {what} evenly; use --tp {legal} or fewer"
            )


def _need(
    spec: ModelSpec, options: PlanOptions, components: tuple[ComponentBytes, ...], spare: int
) -> Need:
    drafter = spec.drafter if options.drafter else None
    layers = spec.layers + (drafter.stages if drafter else 0)
    traffic = Traffic(
        dense_bytes(components), spec.layers, spec.topk, expert_bytes(components, spec)
    )
    return Need(traffic, layers * spec.experts, _generated(options, drafter), spare)


def _generated(options: PlanOptions, drafter: DrafterSpec | None) -> int:
    """Return the most generated rows of one step, the measuring of costs at start among them."""
    rows = options.max_running
    if drafter is not None:
        rows = max(rows * (1 + drafter.block), MEASURED_ROWS[-1])
    if options.exact:
        rows += max(options.prefill_chunk, options.step_tokens)
    return rows


def _capacity(spec: ModelSpec, options: PlanOptions, pages: int) -> Capacity:
    kv_format, drafter = options.kv_format, options.drafter
    snapshots = snapshots_for(spec, kv_format, pages, drafter, options.prefix_cache)
    return Capacity.of(spec, kv_format, pages, options.max_running, drafter, snapshots)


def _workspace(spec: ModelSpec, options: PlanOptions, pages: int) -> int:
    rows = max(options.prefill_chunk, options.step_tokens) + options.max_running
    tokens = min(pages * PAGE, spec.max_positions)
    return workspace_bytes(spec, min(rows, pages * PAGE), options.max_running, tokens)


def _pages(
    spec: ModelSpec, machine: Machine, options: PlanOptions, components: tuple[ComponentBytes, ...]
) -> int:
    """Return the pages asked for, or those that auto takes."""
    if options.kv_tokens is not None:
        return pages_for(options.kv_tokens)
    ranks = options.here
    weights = sum(component.held for component in components)

    def free(pages: int) -> int:
        capacity = _capacity(spec, options, pages)
        bare = capacity.nbytes - pages * capacity.page_bytes
        rest = weights + bare + _workspace(spec, options, pages)
        return (machine.memory.available - ranks * rest) // ranks

    return auto_pages(spec, options.kv_format, free)


def _knob(plan: Plan) -> str:
    """Return the words that say which option makes it fit, changing as little as possible."""

    def fits(**changed: int) -> bool:
        options = replace(plan.options, **changed)  # type: ignore[arg-type]
        pages = pages_for(options.kv_tokens or plan.kv_tokens)
        capacity = _capacity(plan.spec, options, pages)
        workspace = _workspace(plan.spec, options, pages)
        return replace(plan, options=options, capacity=capacity, workspace=workspace).fits

    slots = largest(
        plan.experts.slots - plan.experts.fewest,
        lambda n: replace(plan, experts=replace(plan.experts, slots=plan.experts.fewest + n)).fits,
    )
    if slots:
        return f"use --expert-slots {plan.experts.fewest + slots}"
    if plan.options.prefix_cache and fits(prefix_cache=0):
        return "use --prefix-cache off, or less than it"
    pages = largest(plan.kv_pages, lambda n: fits(kv_tokens=n * PAGE))
    if pages:
        return f"use --kv-tokens {pages * PAGE}"
    running = largest(plan.max_running, lambda n: fits(kv_tokens=PAGE, max_running=n))
    if running:
        return f"use --kv-tokens {PAGE} --max-running {running}"
    chunk = largest(
        plan.options.prefill_chunk,
        lambda n: fits(kv_tokens=PAGE, max_running=1, prefill_chunk=n, step_tokens=n),
    )
    if chunk:
        rows = f"--prefill-chunk {chunk} --step-tokens {chunk}"
        return f"use --kv-tokens {PAGE} --max-running 1 {rows}"
    return (
        f"no option helps: the weights alone take {amount(plan.weights)} a rank; use a machine "
        "with more free memory, or a smaller checkpoint"
    )
