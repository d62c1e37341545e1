"""The composition root: from a checkpoint's name and options to a runtime that can step.

The order matters: plan and refuse, judge the headers, bring the ranks together, then let each hold
its part, and put what decides around the leader's. Nothing changes configuration afterwards.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from deskside.checkpoint.index import Checkpoint
from deskside.config.engine import EngineOptions
from deskside.config.environment import profile_folder
from deskside.core import RankReport, Request
from deskside.device import Pins
from deskside.engine.engine import Engine
from deskside.engine.lead import Alone, Led
from deskside.engine.speculation import Speculator
from deskside.injection import Probe
from deskside.layout.folder import resolve
from deskside.machine.placement import Placement
from deskside.planning.plan import Plan, plan_folder
from deskside.report.ranks import ranks_table
from deskside.runtime.costs import CostRecord, with_costs
from deskside.runtime.hold import Held, hold
from deskside.runtime.measure import measured
from deskside.runtime.placing import placed
from deskside.runtime.profiles import fingerprint, known_rates
from deskside.runtime.ranks import Ensemble, Listener
from deskside.runtime.speculate import drafts, greedy_only
from deskside.scheduler.admission import Admissions
from deskside.scheduler.scheduler import Scheduler, StepLimits
from deskside.speculate.stop import StopRule
from deskside.text.guide import Guides
from deskside.text.tokenizer import Tokenizer

__all__ = ["Runtime", "build", "decided", "leading"]

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Runtime:
    """A loaded model with its scheduler and engine, and the plan it obeys."""

    plan: Plan
    placement: Placement
    tokenizer: Tokenizer
    scheduler: Scheduler
    engine: Engine
    guides: Guides
    """Compile grammars: in a thread, so that a step only finds them."""
    state_bytes: int
    """Bytes of the allocated cache."""
    ensemble: Ensemble = field(default_factory=Ensemble)
    probe: Probe = field(default_factory=Probe)
    """Where tests let faults happen."""
    pins: Pins | None = None
    reports: tuple[RankReport, ...] = ()
    """What every rank holds, and where."""

    def close(self) -> None:
        """End the ranks that follow and unpin; tensors go with the object. Any number of times."""
        self.ensemble.close(orderly=self.engine.close())
        if self.pins is not None:
            self.pins.close()


def build(model: str, options: EngineOptions, progress: Listener | None = None) -> Runtime:
    """Plan, check and load a checkpoint, with the ranks that share it.

    Args:
        model: a folder in the 0731 layout, or the name of one that ships.
        options: how to run it.
        progress: is told how far every rank is, again and again.

    Raises:
        CapacityError: it does not fit; no weight was read.
        CheckpointError: the folder does not hold a whole checkpoint; no weight was read.
        LostRankError: a rank did not come, or is gone.
    """
    checkpoint = Checkpoint.open(resolve(model))
    plan = plan_folder(model, options, known_rates(model, options))
    plan.require_fit()
    tokenizer = Tokenizer.open(checkpoint.folder)
    tokenizer.check(plan.spec, str(checkpoint.folder / "tokenizer.json"))
    drafts(plan, options)  # refuses what this drafter cannot do, before ranks are started
    ensemble = Ensemble.lead(options)
    try:
        ensemble.setup(model, decided(options, plan))
        places = placed(plan.machine.topology, options, plan.options.here).ranks
        listen = ensemble.watched(progress, [place.nodes for place in places])
        held = hold(checkpoint, plan, options, ensemble.group, ensemble.meeting, listen)
        ensemble.loaded()
        return leading(plan, options, tokenizer, held, ensemble)
    except BaseException:
        ensemble.close(orderly=False)
        raise


def leading(
    plan: Plan, options: EngineOptions, tokenizer: Tokenizer, held: Held, ensemble: Ensemble
) -> Runtime:
    """Put what decides around what a rank holds."""
    lead = Alone() if ensemble.group.ranks == 1 else Led(ensemble.group, held.owners)
    speculation = held.speculation
    if isinstance(speculation, Speculator) and options.speculation == "auto":
        measure = partial(
            measured, speculation, held.target, held.state, held.owners, held.builder, lead
        )
        record = _record(plan, options)
        speculation = with_costs(speculation, record, measure, options.measure_costs)
    for line in ranks_table(held.reports):
        LOG.info("placement: %s", line)
    stops = _stop_rules(plan, tokenizer)
    guides = Guides(tokenizer, plan.spec.vocab)
    return Runtime(
        plan=plan,
        placement=held.placement,
        tokenizer=tokenizer,
        scheduler=_scheduler(
            plan, greedy_only(options) and held.drafting, held.owners.prefixes.resumable
        ),
        engine=Engine(
            held.target,
            held.state,
            held.owners,
            held.builder,
            stops,
            speculation,
            guides,
            lead,
            held.probe,
            held.ops.best,
        ),
        guides=guides,
        state_bytes=held.state_bytes,
        ensemble=ensemble,
        probe=held.probe,
        pins=held.pins,
        reports=held.reports,
    )


def decided(options: EngineOptions, plan: Plan) -> EngineOptions:
    """Return the options with what a plan found for auto, so that every rank plans the same."""
    experts = plan.experts
    fixed = replace(options, kv_tokens=plan.kv_tokens, backend=experts.backend)
    if not experts.slots:
        return fixed
    return replace(fixed, expert_slots=experts.slots, fetch_fraction=experts.fraction)


def _record(plan: Plan, options: EngineOptions) -> CostRecord:
    """Return where the profile keeps what drafts and forwards cost with these options.

    Slots are no condition: auto counts them by the memory that is free at the moment.
    """
    experts = plan.experts
    conditions = (
        f"kv-format {options.kv_format}, backend {experts.backend}, "
        f"fetch-fraction {experts.fraction:g}"
    )
    if options.tp > 1:
        conditions += f", tp {options.tp}"
    machine = fingerprint(options, plan.machine.topology)
    return CostRecord(profile_folder(), plan.spec, machine, conditions)


def _scheduler(
    plan: Plan, greedy_only: bool, reusable: Callable[[tuple[int, ...]], int]
) -> Scheduler:
    drafter = plan.spec.drafter if plan.options.drafter else None
    return Scheduler(
        Admissions(
            plan.kv_pages,
            plan.max_running,
            plan.spec.vocab,
            positions=plan.spec.max_positions,
            greedy_only=greedy_only,
        ),
        StepLimits(
            plan.options.prefill_chunk,
            plan.options.step_tokens,
            drafter.block if drafter else 0,
        ),
        reusable,
    )


def _stop_rules(plan: Plan, tokenizer: Tokenizer) -> Callable[[Request], StopRule]:
    return lambda request: StopRule(request, plan.spec.eos, tokenizer.text_bytes)
