"""The whole trunk: embedding, layers, head. One forward for any mix of ragged spans."""

from collections.abc import Mapping

from torch import Tensor

from deskside.batch import Batch
from deskside.model.block import Block
from deskside.model.parts import Parts
from deskside.model.rotary import Rotary
from deskside.ops.linear import Weight
from deskside.ops.opset import OpSet
from deskside.spec import ModelSpec
from deskside.state.kv import KvState

__all__ = ["Flash"]


class Flash:
    """The target model. Attribute names follow the checkpoint."""

    def __init__(self, weights: Mapping[str, Weight], spec: ModelSpec, ops: OpSet) -> None:
        parts = Parts(weights, spec, ops)
        self.embed = parts.tensor("embed.weight")
        self.layers = [
            Block(parts.below(f"layers.{i}"), ratio, i < spec.hash_layers)
            for i, ratio in enumerate(spec.ratios)
        ]
        self.hc_head_fn = parts.tensor("hc_head_fn")
        self.hc_head_base = parts.tensor("hc_head_base")
        self.hc_head_scale = parts.tensor("hc_head_scale")
        self.norm = parts.tensor("norm.weight")
        self.head = parts.matrix("head.weight")
        self._rotary = Rotary(spec, ops)
        self._spec = spec
        self._ops = ops

    def forward(self, batch: Batch, state: KvState) -> Tensor:
        """Process a batch's rows and leave their state in staging and beyond the frontiers.

        Args:
            batch: rows of reserved spans.
            state: the cache; history in it is only read.

        Returns:
            Logits [logit rows, vocab] float32 of `batch.logit_rows`.
        """
        tables = self._rotary.tables(batch)
        embedded = self.embed[batch.ids].float()
        streams = embedded.unsqueeze(1).repeat(1, self._spec.streams, 1)
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            streams = layer.forward(streams, batch, tables, layer_state)
        return self._logits(streams[batch.logit_rows])

    def _logits(self, streams: Tensor) -> Tensor:
        spec, ops = self._spec, self._ops
        if streams.shape[0] == 0:
            return streams.new_zeros(0, spec.vocab)
        x = ops.hyper_head(
            streams,
            self.hc_head_fn,
            self.hc_head_base,
            self.hc_head_scale,
            spec.hc_eps,
            spec.norm_eps,
        )
        return ops.linear(ops.rms_norm(x, self.norm, spec.norm_eps), self.head)
