"""The mixture of experts of one layer: gate, routed experts, shared expert."""

from torch import Tensor

from deskside.batch import Batch
from deskside.experts.service import ExpertLayer
from deskside.model.parts import Parts, leaves_of
from deskside.ops.integer_moe import windows_of
from deskside.ops.linear import Bundle

__all__ = ["MoE"]


class Expert:
    """The shared expert: `w1` gate, `w3` up, `w2` down."""

    def __init__(self, parts: Parts) -> None:
        self.w1 = parts.matrix("w1.weight")
        self.w3 = parts.matrix("w3.weight")
        self.w2 = parts.matrix("w2.weight")
        self._limit = parts.spec.swiglu_limit
        self._leaves = parts.ranks.share(leaves_of(parts.spec.intermediate))
        self._ops = parts.ops

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return this rank's part of [rows, hidden] for rows multiplied with `w1` and `w3`."""
        hidden = self._ops.swiglu(gate, up, self._limit)
        return self._ops.linear(hidden, self.w2, self._leaves)


class MoE:
    """Gate, banks and shared expert; the first layers route by a table of token ids."""

    def __init__(self, parts: Parts, hashed: bool) -> None:
        self.gate = parts.matrix("gate.weight")
        self.bias = None if hashed else parts.tensor("gate.bias")
        self.tid2eid = parts.tensor("gate.tid2eid") if hashed else None
        self.w1 = parts.packed("experts.w1")
        self.w3 = parts.packed("experts.w3")
        self.w2 = parts.packed("experts.w2")
        self.shared_experts = Expert(parts.below("shared_experts"))
        self._inputs = Bundle((self.gate, self.shared_experts.w1, self.shared_experts.w3))
        spec = parts.spec
        banks = (self.w1, self.w3, self.w2)
        ranks = parts.ranks
        windows = windows_of(
            *banks, spec.swiglu_limit, spec.topk, spec.route_scale, ranks.count, ranks.largest
        )
        self._layer = ExpertLayer(parts.prefix, banks, windows)
        self._experts = parts.experts
        self._spec = spec
        self._ops = parts.ops

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Run a batch's rows [rows, hidden] float32 through the layer."""
        logits, gate, up = self._ops.linears(x, self._inputs)
        ids, weights = self._route(logits, batch.ids)
        shared = self.shared_experts.forward(gate, up)
        return self._experts.run(self._layer, x, ids, weights, batch.kinds, shared)

    def _route(self, logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        if self.tid2eid is not None:
            ids = self.tid2eid[token_ids]
            return ids, self._ops.route_hashed(logits, ids, self._spec.route_scale)
        return self._ops.route(logits, self.bias, self._spec.topk, self._spec.route_scale)
