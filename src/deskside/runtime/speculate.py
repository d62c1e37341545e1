"""Puts speculation together: the checkpoint's drafter, its context, the rule and the controller."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deskside.config.engine import EngineOptions
from deskside.distributed.group import Group
from deskside.engine.owners import Owners
from deskside.engine.speculation import Speculator
from deskside.engine.widths import WidthChooser, fixed, rule
from deskside.errors import CheckpointError, InputError
from deskside.experts.service import ExpertService
from deskside.formats.rows import RowFormat
from deskside.model.drafter import Drafter
from deskside.ops.linear import Weight
from deskside.ops.opset import OpSet
from deskside.planning.plan import Plan
from deskside.speculate.costs import CostTable
from deskside.speculate.fallback import FallbackSettings
from deskside.speculate.width import WidthRule
from deskside.state.context import DraftContext

__all__ = ["STORED_COSTS", "Draft", "drafts", "greedy_only"]

TEMPERATURES = "deskside_confidence_temperatures"
"""Field of config.json: one temperature of the confidence for each place of a block."""

STORED_COSTS = CostTable.measured(
    0.45, {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 1.4, 6: 1.5, 8: 1.7, 16: 2.5}
)
"""Costs in units of a one-row forward, for requests that must not depend on a clock."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A loaded drafter with its context rings."""

    drafter: Drafter
    context: DraftContext

    @staticmethod
    def load(
        plan: Plan,
        config: Mapping[str, Any],
        weights: Mapping[str, Weight],
        ops: OpSet,
        experts: ExpertService,
        body: Callable[[RowFormat], RowFormat] | None,
        group: Group,
    ) -> "Draft":
        """Build the drafter of a checkpoint that has one."""
        context = DraftContext.allocate(
            plan.spec,
            plan.options.kv_format,
            plan.max_running,
            body,
            plan.capacity.borders,
        )
        temperatures = _temperatures(plan, config)
        return Draft(Drafter(weights, plan.spec, ops, temperatures, experts, group), context)

    def speculator(self, plan: Plan, options: EngineOptions, owners: Owners) -> Speculator:
        """Return what proposes with this drafter, by stored costs."""
        fallback = FallbackSettings(
            options.fallback_threshold,
            options.fallback_min_drafted,
            options.fallback_steps,
            options.fallback_backoff,
            options.fallback_rule == "paying",
        )
        return Speculator(
            plan.spec,
            self.drafter,
            self.context,
            owners.tokens,
            owners.rings,
            owners.grammars,
            _chooser(options),
            options.speculation == "auto" and options.width_rule == "stop",
            STORED_COSTS,
            STORED_COSTS,
            fallback if options.fallback else None,
        )


def drafts(plan: Plan, options: EngineOptions) -> bool:
    """Say whether a drafter is wanted and there.

    Raises:
        InputError: a width was asked for that this checkpoint cannot propose.
    """
    width, drafter = options.speculation, plan.spec.drafter
    if isinstance(width, int) and width > (drafter.block if drafter else 0):
        have = f"proposes at most {drafter.block}" if drafter else "has no drafter"
        raise InputError(f"--speculation {width}: this checkpoint {have}; use auto or off")
    return plan.options.drafter and drafter is not None


def greedy_only(options: EngineOptions) -> bool:
    """Say whether the rule looks ahead and so bears greedy requests alone."""
    return options.speculation == "auto" and options.width_rule == "argmax"


def _chooser(options: EngineOptions) -> WidthChooser:
    if isinstance(options.speculation, int):
        return fixed(options.speculation)
    return rule(WidthRule(options.width_rule))


def _temperatures(plan: Plan, config: Mapping[str, Any]) -> tuple[float, ...]:
    """Read the confidence temperatures; a checkpoint without them is taken as it is."""
    assert plan.spec.drafter is not None
    values = config.get(TEMPERATURES, [])
    good = isinstance(values, list) and all(
        isinstance(value, int | float) and 0 < value < 1e6 for value in values
    )
    if not good or len(values) not in (0, plan.spec.drafter.block):
        raise CheckpointError(
            f"config.json: field {TEMPERATURES!r} must list {plan.spec.drafter.block} "
            "positive numbers"
        )
    return tuple(float(value) for value in values)
