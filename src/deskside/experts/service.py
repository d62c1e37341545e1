"""The routed experts of a layer, wherever they are: the hybrid step in one function.

Resident experts run on the device. Of the missing ones a share is fetched into slots while the CPU
computes the others in place; then one sum. Knows no routing and no layer but the one it is given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from deskside.batch import Kinds
from deskside.distributed.group import ALONE, Group
from deskside.experts.cache import ExpertCache
from deskside.experts.fetch import Banks, ExpertSlots
from deskside.experts.split import renumbered, split_of
from deskside.ops.integer_moe import Windows
from deskside.ops.opset import OpSet

__all__ = ["ExpertLayer", "ExpertService", "Residency"]

Part = Callable[[Banks, Tensor], Tensor]
"""From banks and ids [rows, topk], -1 for experts of other parts, to a part of the sum."""


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The routed experts of one layer, in host memory."""

    name: str
    """Prefix of the checkpoint's names, the same for no two layers."""
    banks: Banks
    windows: Windows


@dataclass(frozen=True, slots=True)
class Residency:
    """Slots on a device, who lies in them, and the share of missing experts to fetch."""

    slots: ExpertSlots
    cache: ExpertCache
    fraction: float


class ExpertService:
    """Runs routed experts of any layer; without a residency all of them in place."""

    def __init__(
        self, ops: OpSet, residency: Residency | None = None, group: Group = ALONE
    ) -> None:
        self._ops = ops
        self._residency = residency
        self._group = group

    def run(
        self,
        layer: ExpertLayer,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        kinds: Kinds,
        shared: Tensor,
    ) -> Tensor:
        """Run rows through their experts: parts of prompt rows add in float32, of others exactly.

        Args:
            layer: whose experts.
            x: [rows, hidden] float32.
            ids: [rows, topk] int64.
            weights: [rows, topk] float32.
            kinds: of the rows.
            shared: [rows, hidden] float32, this rank's part of another sum, which is added; ranks
                exchange both in one message.

        Returns:
            [rows, hidden] float32, the same on every rank. For generated rows the bits depend on
            nothing but these inputs; for prompt rows also on the fetch fraction, never on residency
            or other rows.
        """
        if kinds.generated.shape[0] == 0:
            return self._prompt(layer, x, ids, weights, shared)
        if kinds.prompt.shape[0] == 0:
            return self._generated(layer, x, ids, weights, shared)
        out = torch.empty_like(x)
        for rows, run in ((kinds.prompt, self._prompt), (kinds.generated, self._generated)):
            out[rows] = run(layer, x[rows], ids[rows], weights[rows], shared[rows])
        return out

    def _prompt(
        self, layer: ExpertLayer, x: Tensor, ids: Tensor, weights: Tensor, shared: Tensor
    ) -> Tensor:
        def part(banks: Banks, ids: Tensor) -> Tensor:
            return self._ops.moe(x, ids, weights, *banks, layer.windows)

        routed, shared = self._exchanged(self._sum(layer, ids, part, generated=False), shared)
        return routed + shared

    def _generated(
        self, layer: ExpertLayer, x: Tensor, ids: Tensor, weights: Tensor, shared: Tensor
    ) -> Tensor:
        def part(banks: Banks, ids: Tensor) -> Tensor:
            return self._ops.expert_sums(x, ids, weights, *banks, layer.windows)

        sums, shared = self._exchanged(self._sum(layer, ids, part, generated=True), shared)
        return self._ops.finish_experts(sums, layer.windows, x, ids, weights) + shared

    def _exchanged(self, routed: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """Add all ranks' parts of two sums of one shape; floats along the fixed tree."""
        routed, shared = self._group.total(routed, shared)
        return routed, shared

    def _sum(self, layer: ExpertLayer, ids: Tensor, part: Part, *, generated: bool) -> Tensor:
        """Add the parts of device and CPU: the hybrid step."""
        if self._residency is None:
            return part(layer.banks, ids)
        slots, cache = self._residency.slots, self._residency.cache
        experts, held = layer.banks[0].codes.shape[0], cache.held(layer.name)
        split = split_of(ids, held, experts, self._residency.fraction, generated=generated)
        hits = {expert: held[expert] for expert in split.hits}
        parts = []
        with (
            cache.step(layer.name, split.hits, split.fetches, recent=generated) as filled,
            slots.filling(layer.banks, filled) as arrival,
        ):
            if generated and hits:
                # Float sums can't be cut here: where would depend on residency.
                parts.append(part(slots.banks, renumbered(ids, hits, experts)))
                hits = {}
            parts.append(part(layer.banks, renumbered(ids, {e: e for e in split.here}, experts)))
            arrival.wait()
            parts.append(part(slots.banks, renumbered(ids, hits | filled, experts)))
        return reduce(torch.add, parts)
