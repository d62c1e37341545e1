"""The composition root: from a checkpoint's name and options to a runtime that can step.

The order matters: plan and refuse, judge the headers, then allocate, load, and put the parts
together. Nothing changes configuration afterwards.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import Progress
from deskside.config import EngineOptions, profile_folder
from deskside.core import Request
from deskside.engine.engine import Engine, Owners
from deskside.engine.inputs import BatchBuilder
from deskside.engine.speculation import Speculation, TargetOnly
from deskside.errors import InputError
from deskside.experts.memory import HostMemory
from deskside.kernels import native, rows
from deskside.kernels.pool import set_workers, touch
from deskside.kernels.tiers import force_tier, tiers
from deskside.layout.folder import resolve
from deskside.machine.placement import Placement, RankPlace
from deskside.model.flash import Flash
from deskside.model.weights import bank_ranges, load
from deskside.ops.opset import OpSet
from deskside.ops.reference import in_reference
from deskside.planning.plan import Plan, plan_folder
from deskside.runtime.costs import CostRecord, with_costs
from deskside.runtime.experts import expert_service
from deskside.runtime.measure import measured
from deskside.runtime.placing import LOSSES, placed, tell
from deskside.runtime.profiles import fingerprint, known_rates
from deskside.runtime.speculate import Draft, drafts, greedy_only
from deskside.scheduler.admission import Admissions
from deskside.scheduler.scheduler import Scheduler, StepLimits
from deskside.speculate.stop import StopRule
from deskside.state.kv import KvState
from deskside.text.tokenizer import Tokenizer

__all__ = ["Runtime", "build"]

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Runtime:
    """A loaded model with its scheduler and engine, and the plan it obeys."""

    plan: Plan
    placement: Placement
    tokenizer: Tokenizer
    scheduler: Scheduler
    engine: Engine
    state_bytes: int
    """Bytes of the allocated cache."""


def build(model: str, options: EngineOptions, progress: Progress | None = None) -> Runtime:
    """Plan, check and load a checkpoint.

    Args:
        model: a folder in the 0731 layout, or the name of one that ships.
        options: how to run it.
        progress: is told bytes read and bytes in all.

    Raises:
        CapacityError: it does not fit; no weight was read.
        CheckpointError: the folder does not hold a whole checkpoint; no weight was read.
    """
    checkpoint = Checkpoint.open(resolve(model))
    plan = plan_folder(model, options, known_rates(model, options))
    plan.require_fit()
    placement = placed(plan.machine.topology, options, plan.options.tensor_parallel)
    for loss in placement.warnings:
        LOSSES.warning("%s", loss)
    tokenizer = Tokenizer.open(checkpoint.folder)
    tokenizer.check(plan.spec, str(checkpoint.folder / "tokenizer.json"))
    drafting = drafts(plan, options)
    ops = _operations(options, placement.ranks[0])
    if options.numerics == "reference":
        ops = in_reference(ops)
    weights = load(
        checkpoint,
        lambda tensor: drafting or not tensor.component.drafter,
        progress,
        memory=HostMemory(options.huge_pages == "on", touch),
    )
    tell(placement, bank_ranges(weights))
    body = rows.compiled if options.kernels == "native" else None
    state = KvState.allocate(
        plan.spec, plan.options.kv_format, plan.kv_pages, plan.max_running, body
    )
    experts = expert_service(plan, weights, ops)
    draft = Draft.load(plan, checkpoint.config, weights, ops, experts, body) if drafting else None
    groups = [draft.context.group] if draft else []
    owners = Owners.allocate(state, plan.kv_pages, plan.max_running, groups)
    target = Flash(weights, plan.spec, ops, experts)
    builder = BatchBuilder(
        plan.spec,
        owners.pages,
        owners.rings,
        exact=options.numerics == "exact",
        floats=options.numerics == "reference",
    )
    speculation: Speculation = TargetOnly()
    if draft is not None:
        speculator = draft.speculator(plan, options, owners)
        speculation = speculator
        if options.speculation == "auto":
            measure = partial(measured, speculator, target, state, owners, builder)
            record = _record(plan, options)
            speculation = with_costs(speculator, record, measure, options.measure_costs)
    return Runtime(
        plan=plan,
        placement=placement,
        tokenizer=tokenizer,
        scheduler=_scheduler(plan, greedy_only(options) and drafting),
        engine=Engine(target, state, owners, builder, _stop_rules(plan, tokenizer), speculation),
        state_bytes=state.nbytes + (draft.context.nbytes if draft else 0),
    )


def _operations(options: EngineOptions, own: RankPlace) -> OpSet:
    """Choose bodies and give the threads to those that do the work.

    Beside compiled kernels torch gets one thread: the workers of two pools would wait for each
    other's cores, and what is left to torch is too small to share.
    """
    threads = own.threads
    if options.kernels == "plain":
        if options.tier != "auto":
            raise InputError(
                f"--tier {options.tier:.60} needs --kernels native: plain has no tiers"
            )
        torch.set_num_threads(threads)
        LOG.info("plain kernels, %d threads", threads)
        return OpSet()
    torch.set_num_threads(1)
    force_tier(options.tier)
    for warning in set_workers(own):
        LOSSES.warning("%s", warning)
    found = tiers()
    LOG.info(
        "compiled kernels, %s tier (%s; available: %s), %d threads",
        found.chosen,
        "forced" if found.forced else "widest",
        ", ".join(found.available),
        threads,
    )
    return OpSet().replaced(native.bodies())


def _record(plan: Plan, options: EngineOptions) -> CostRecord:
    """Return where the profile keeps what drafts and forwards cost with these options.

    Slots are no condition: auto counts them by the memory that is free at the moment.
    """
    experts = plan.experts
    conditions = (
        f"kv-format {options.kv_format}, backend {experts.backend}, "
        f"fetch-fraction {experts.fraction:g}"
    )
    machine = fingerprint(options, plan.machine.topology)
    return CostRecord(profile_folder(), plan.spec, machine, conditions)


def _scheduler(plan: Plan, greedy_only: bool) -> Scheduler:
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
    )


def _stop_rules(plan: Plan, tokenizer: Tokenizer) -> Callable[[Request], StopRule]:
    return lambda request: StopRule(request, plan.spec.eos, tokenizer.text_bytes)
