"""One layer: attention and experts, each between the two halves of a hyper-connection.

Beside it the end of a stack of layers, where the streams come together and become logits.
"""

from collections.abc import Callable

from torch import Tensor

from deskside.batch import Batch
from deskside.model.attention import Attention
from deskside.model.moe import MoE
from deskside.model.parts import Parts
from deskside.model.rotary import RotaryTables
from deskside.ops.linear import Weight
from deskside.state.kv import LayerState

__all__ = ["Block", "Head"]


class HyperConnection:
    """Weights `hc_<name>_fn`, `_base`, `_scale` and the norm of the sub-layer they wrap."""

    def __init__(self, parts: Parts, name: str) -> None:
        self.fn = parts.tensor(f"hc_{name}_fn")
        self.base = parts.tensor(f"hc_{name}_base")
        self.scale = parts.tensor(f"hc_{name}_scale")
        self.norm = parts.tensor(f"{name}_norm.weight")
        self._spec = parts.spec
        self._ops = parts.ops

    def around(self, streams: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Run a sub-layer on the mixed streams [rows, S, hidden] and write its output back."""
        spec, ops = self._spec, self._ops
        mixed, post, mixing = ops.hyper_pre(
            streams,
            self.fn,
            self.base,
            self.scale,
            spec.sinkhorn_iterations,
            spec.hc_eps,
            spec.norm_eps,
        )
        output = sublayer(ops.rms_norm(mixed, self.norm, spec.norm_eps))
        return ops.hyper_post(output, streams, post, mixing)


class Block:
    """One layer of the trunk, or one stage of the drafter."""

    def __init__(self, parts: Parts, ratio: int, hashed: bool) -> None:
        self.attn = Attention(parts.below("attn"), ratio)
        self.ffn = MoE(parts.below("ffn"), hashed)
        self._attn_connection = HyperConnection(parts, "attn")
        self._ffn_connection = HyperConnection(parts, "ffn")

    def forward(
        self, streams: Tensor, batch: Batch, tables: RotaryTables, state: LayerState
    ) -> Tensor:
        """Run streams [rows, S, hidden] float32 through the layer."""
        streams = self._attn_connection.around(
            streams, lambda x: self.attn.forward(x, batch, tables, state)
        )
        return self._ffn_connection.around(streams, lambda x: self.ffn.forward(x, batch))


class Head:
    """Weights `hc_head_*` and `norm`: what stands between the last layer and a head matrix."""

    def __init__(self, parts: Parts) -> None:
        self.hc_head_fn = parts.tensor("hc_head_fn")
        self.hc_head_base = parts.tensor("hc_head_base")
        self.hc_head_scale = parts.tensor("hc_head_scale")
        self.norm = parts.tensor("norm.weight")
        self._spec = parts.spec
        self._ops = parts.ops

    def collapse(self, streams: Tensor) -> Tensor:
        """Bring streams [rows, S, hidden] together: [rows, hidden], before the norm."""
        spec = self._spec
        return self._ops.hyper_head(
            streams,
            self.hc_head_fn,
            self.hc_head_base,
            self.hc_head_scale,
            spec.hc_eps,
            spec.norm_eps,
        )

    def logits(self, x: Tensor, matrix: Weight) -> Tensor:
        """Norm collapsed rows [rows, hidden] and multiply: [rows, matrix rows] float32."""
        return self._ops.linear(self._ops.rms_norm(x, self.norm, self._spec.norm_eps), matrix)
