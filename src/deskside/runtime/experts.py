"""Puts the service of routed experts together as a plan says."""

import logging
from collections.abc import Mapping

from deskside.device import HostDevice
from deskside.distributed.group import Group
from deskside.experts.cache import ExpertCache
from deskside.experts.fetch import Banks, ExpertSlots
from deskside.experts.service import ExpertService, Residency
from deskside.formats.packed import Packed
from deskside.ops.linear import Weight
from deskside.ops.opset import OpSet
from deskside.planning.plan import Plan

__all__ = ["expert_service"]

LOG = logging.getLogger(__name__)


def expert_service(
    plan: Plan, weights: Mapping[str, Weight], ops: OpSet, group: Group
) -> ExpertService:
    """Return the service for all layers; where the plan has slots they are allocated here."""
    experts = plan.experts
    for line in experts.lines():
        LOG.info("experts: %s", line)
    if not experts.slots:
        return ExpertService(ops, group=group)
    slots = ExpertSlots.allocate(HostDevice(), _banks(weights), experts.slots)
    residency = Residency(slots, ExpertCache(experts.slots), experts.fraction)
    return ExpertService(ops, residency, group)


def _banks(weights: Mapping[str, Weight]) -> Banks:
    """Return the banks of one layer: experts have one shape in all of them."""
    w1, w3, w2 = (weights[f"layers.0.ffn.experts.{name}"] for name in ("w1", "w3", "w2"))
    assert isinstance(w1, Packed)
    assert isinstance(w3, Packed)
    assert isinstance(w2, Packed)
    return w1, w3, w2
