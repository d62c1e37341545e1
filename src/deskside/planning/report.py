"""A plan as JSON and as lines of text.

Owns the words and the columns; changes no number.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deskside.layout.kv import PAGE
from deskside.planning.amounts import amount, grouped
from deskside.spec import CSA_RATIO, HCA_RATIO, ModelSpec

if TYPE_CHECKING:
    from deskside.planning.components import ComponentBytes
    from deskside.planning.plan import Plan

__all__ = ["as_json", "as_lines"]


def as_json(plan: "Plan") -> dict[str, Any]:
    """Return a plan as plain values, all sizes in bytes."""
    capacity, options = plan.capacity, plan.options
    topology = plan.machine.topology
    return {
        "model": {
            "layers": plan.spec.layers,
            **_layer_kinds(plan.spec),
            "experts": plan.spec.experts,
            "max_positions": plan.spec.max_positions,
            "drafter": plan.spec.drafter is not None,
        },
        "options": {
            "kv_tokens": options.kv_tokens or "auto",
            "kv_format": options.kv_format.value,
            "tensor_parallel": options.tensor_parallel,
            "max_running": options.max_running,
            "prefill_chunk": options.prefill_chunk,
            "step_tokens": options.step_tokens,
            "drafter": options.drafter,
        },
        "machine": {
            "memory_total": plan.machine.memory.total,
            "memory_available": plan.machine.memory.available,
            "memory_limit": plan.machine.memory.limit,
            "cpu": topology.model,
            "cpus": len(topology.cpus),
            "cores": len(topology.cores),
            "nodes": len(topology.nodes),
        },
        "components": [
            {
                "name": part.component.value,
                "how": "split" if part.split else "replicated",
                "stored": part.stored,
                "rank": part.rank,
                "held": part.held,
            }
            for part in plan.components
        ],
        "totals": {name: _sums(parts) for name, parts in _groups(plan)},
        "kv": {
            "format": capacity.kv_format.value,
            "page_tokens": PAGE,
            "pages": capacity.pages,
            "tokens": capacity.tokens,
            "page_bytes": capacity.page_bytes,
            "token_bytes": capacity.page_bytes / PAGE,
            "pool_bytes": capacity.pool_bytes,
            "slots": capacity.slots,
            "slot_bytes": capacity.slot_bytes,
            "snapshots": capacity.snapshots,
            "snapshot_bytes": capacity.snapshot_bytes,
            "prefix_bytes": capacity.prefix_bytes,
            "bytes": capacity.nbytes,
        },
        "routed": plan.experts.to_json(),
        "workspace": plan.workspace,
        "need": plan.need,
        "have": plan.have,
        "fits": plan.fits,
        "knob": plan.knob,
    }


def as_lines(plan: "Plan") -> Iterator[str]:
    """Yield the plan line by line: model, machine, components, cache, verdict."""
    spec, capacity, ranks = plan.spec, plan.capacity, plan.options.tensor_parallel
    kinds = _layer_kinds(spec)
    yield (
        f"model      {spec.layers} layers ({kinds['window']} window, {kinds['csa']} CSA, "
        f"{kinds['hca']} HCA), {spec.experts} experts top-{spec.topk}, "
        f"{grouped(spec.max_positions)} positions"
    )
    memory, topology = plan.machine.memory, plan.machine.topology
    limited = ", limited by a control group" if memory.limit else ""
    yield (
        f"machine    {topology.model}: {len(topology.cores)} cores, {len(topology.nodes)} nodes, "
        f"{amount(memory.available)} of {amount(memory.total)} memory free{limited}"
    )
    yield ""
    yield f"{'component':34}{'how':>12}{'stored bytes':>18}{'of one rank':>18}{'held':>18}"
    for part in plan.components:
        how = "split" if part.split else "replicated"
        yield _row(part.component.value, how, part.stored, part.rank, part.held)
    for name, parts in _groups(plan):
        sums = _sums(parts)
        yield _row(f"= {name}", "", sums["stored"], sums["rank"], sums["held"])
    if any(part.held != part.rank for part in plan.components):
        yield "The drafter is not loaded; all else is held as it is stored."
    else:
        yield "All is held as it is stored."
    yield ""
    chosen = "chosen" if plan.options.kv_tokens is None else "asked for"
    yield (
        f"KV cache   {capacity.kv_format.value}, {grouped(capacity.tokens)} tokens {chosen} = "
        f"{grouped(capacity.pages)} pages of {PAGE}; {grouped(capacity.page_bytes)} B a page, "
        f"{capacity.page_bytes / PAGE:g} B a token"
    )
    yield (
        f"           {capacity.slots} running requests; {grouped(capacity.slot_bytes)} B each for "
        "rings, carries and staging"
    )
    if capacity.snapshots:
        yield (
            f"           {capacity.snapshots} snapshots for prompts that begin alike; "
            f"{grouped(capacity.snapshot_bytes)} B each"
        )
    where, rate = plan.experts.lines()
    yield f"experts    {where}"
    yield f"rate       {rate}"
    yield ""
    yield f"weights    {amount(plan.weights):>12}"
    yield f"KV cache   {amount(capacity.nbytes):>12}"
    yield f"workspace  {amount(plan.workspace):>12}"
    if plan.experts.slots:
        yield f"slots      {amount(plan.experts.nbytes):>12}"
    times = f"   ({ranks} ranks on this machine)" if ranks > 1 else ""
    yield f"need       {amount(plan.need):>12}{times}"
    yield f"have       {amount(plan.have):>12}"
    yield "fits" if plan.fits else f"does not fit: {plan.knob}"


def _row(name: str, how: str, *sizes: int) -> str:
    return f"{name:34}{how:>12}" + "".join(f"{grouped(size):>18}" for size in sizes)


def _layer_kinds(spec: ModelSpec) -> dict[str, int]:
    return {
        "window": spec.ratios.count(0),
        "csa": spec.ratios.count(CSA_RATIO),
        "hca": spec.ratios.count(HCA_RATIO),
    }


def _groups(plan: "Plan") -> list[tuple[str, list["ComponentBytes"]]]:
    """Name the sums below the table; a model without drafter has one."""
    trunk = [part for part in plan.components if not part.component.drafter]
    drafter = [part for part in plan.components if part.component.drafter]
    if not drafter:
        return [("all", trunk)]
    return [("trunk", trunk), ("mtp", drafter), ("all", trunk + drafter)]


def _sums(parts: list["ComponentBytes"]) -> dict[str, int]:
    return {
        "stored": sum(part.stored for part in parts),
        "rank": sum(part.rank for part in parts),
        "held": sum(part.held for part in parts),
    }
