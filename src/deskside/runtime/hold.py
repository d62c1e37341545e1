"""What one rank holds of a model: weights in their places, state, and the parts that run them.

The same on every rank, whoever leads. The order matters: threads before memory, so that banks lie
where their readers are; then weights, state, experts, model.
"""

import logging
from dataclasses import dataclass, replace

import torch

from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import Cut, Progress
from deskside.config.engine import EngineOptions
from deskside.config.environment import torchrun_place
from deskside.core import RankReport
from deskside.device import Pins, host_pins
from deskside.distributed.gloo import Meeting
from deskside.distributed.group import Group
from deskside.engine.inputs import BatchBuilder
from deskside.engine.owners import Owners
from deskside.engine.speculation import Speculation, TargetOnly
from deskside.errors import InputError
from deskside.experts.memory import HostMemory
from deskside.injection import Probe, Site, injections
from deskside.kernels import native, rows
from deskside.kernels.pool import set_workers, touch
from deskside.kernels.tiers import force_tier, tiers
from deskside.machine.placement import Placement, RankPlace
from deskside.model.flash import Flash
from deskside.model.weights import bank_ranges, load
from deskside.ops.opset import OpSet
from deskside.ops.reference import in_reference
from deskside.planning.plan import Plan
from deskside.runtime.experts import expert_service
from deskside.runtime.placing import LOSSES, placed, tell
from deskside.runtime.ranks import turn
from deskside.runtime.reports import gathered, own_report
from deskside.runtime.speculate import Draft, drafts
from deskside.state.kv import KvState

__all__ = ["Held", "hold"]

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """One rank's part of a loaded model."""

    placement: Placement
    own: RankPlace
    reports: tuple[RankReport, ...]
    """Of all ranks."""
    ops: OpSet
    target: Flash
    state: KvState
    owners: Owners
    builder: BatchBuilder
    speculation: Speculation
    drafting: bool
    state_bytes: int
    probe: Probe
    pins: Pins | None
    """Keeps the banks of experts pinned where there is a GPU."""


def hold(
    checkpoint: Checkpoint,
    plan: Plan,
    options: EngineOptions,
    group: Group,
    meeting: Meeting | None = None,
    progress: Progress | None = None,
) -> Held:
    """Load a rank's part and put it together; every rank of a group does at the same time.

    Raises:
        CheckpointError: a scale is not a number, or a file has shrunk.
        InputError: options that this build or processor cannot obey.
        LostRankError: another rank is gone.
    """
    here = torchrun_place()
    placement = placed(plan.machine.topology, options, plan.options.here)
    own = placement.ranks[group.rank if here is None else here.local_rank]
    for loss in placement.warnings if group.rank == 0 else ():
        LOSSES.warning("%s", loss)
    drafting = drafts(plan, options)
    probe = Probe(injections(options.test_faults, group.rank))
    ops = _operations(options, own)
    if options.numerics == "reference":
        ops = in_reference(ops)
    if options.test_faults:
        ops = _probed(ops, probe)
    pins = host_pins()
    group.enter("loading weights")
    with turn(meeting, serial=options.load_order == "serial"):
        weights = load(
            checkpoint,
            lambda tensor: drafting or not tensor.component.drafter,
            probe.around(Site.READ, progress or _unseen),
            memory=HostMemory(
                options.huge_pages == "on",
                probe.around(Site.BANK, touch),
                pins.pin if pins else None,
            ),
            cut=Cut(group.rank, group.ranks),
        )
    tell(placement, bank_ranges(weights))
    group.enter("putting the model together")
    body = rows.compiled if options.kernels == "native" else None
    kv_format = plan.options.kv_format
    probe.at(Site.STATE)
    capacity = plan.capacity
    state = KvState.allocate(
        plan.spec, kv_format, plan.kv_pages, plan.max_running, body, capacity.borders
    )
    experts = expert_service(plan, weights, ops, group)
    draft = None
    if drafting:
        draft = Draft.load(plan, checkpoint.config, weights, ops, experts, body, group)
    groups = [draft.context.group] if draft else []
    owners = Owners.allocate(
        state,
        plan.kv_pages,
        plan.max_running,
        groups,
        snapshots=capacity.snapshots,
        whole=_one_kind(plan, options, group),
    )
    target = Flash(weights, plan.spec, ops, experts, group)
    group.settle(options.rank_timeout, spin=own.spin)
    report = own_report(group.rank, own, weights, plan.experts.nbytes)
    return Held(
        placement=placement,
        reports=gathered(group, report),
        own=own,
        ops=ops,
        target=target,
        state=state,
        owners=owners,
        builder=_builder(plan, options, owners, group),
        speculation=draft.speculator(plan, options, owners) if draft else TargetOnly(),
        drafting=drafting,
        state_bytes=state.nbytes + owners.copies.nbytes + (draft.context.nbytes if draft else 0),
        probe=probe,
        pins=pins,
    )


def _unseen(_done: int, _total: int) -> None:
    """Take in a load's progress and show nothing."""


def _probed(ops: OpSet, probe: Probe) -> OpSet:
    """Return operations whose routed experts are a site of faults."""
    return replace(
        ops,
        moe=probe.around(Site.EXPERTS, ops.moe),
        expert_sums=probe.around(Site.EXPERTS, ops.expert_sums),
    )


def _builder(plan: Plan, options: EngineOptions, owners: Owners, group: Group) -> BatchBuilder:
    """Return the builder; with several ranks all rows are exact, as only integers have no order."""
    reference = options.numerics == "reference"
    exact = options.numerics == "exact" or (group.ranks > 1 and not reference)
    return BatchBuilder(plan.spec, owners.pages, owners.rings, exact=exact, floats=reference)


def _one_kind(plan: Plan, options: EngineOptions, group: Group) -> bool:
    """Say whether a generated row has the bits that a prompt row of its token has.

    It has not where the fast path of prompt rows adds floats: in the plain bodies, and where the
    parts of device and CPU are added.
    """
    floats = options.kernels == "plain" or plan.experts.slots > 0
    return options.numerics != "fast" or group.ranks > 1 or not floats


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
