"""The lightning indexer: which compressed entries a row of a ratio-4 layer attends to."""

from collections.abc import Sequence

import torch
from torch import Tensor

from deskside.batch import Batch
from deskside.model.compressor import Compressor
from deskside.model.parts import Parts
from deskside.spec import CSA_RATIO
from deskside.state.kv import LayerState, Pool

__all__ = ["Indexer", "all_visible"]


class Indexer:
    """Weights `wq_b`, `weights_proj` and an own compressor."""

    def __init__(self, parts: Parts) -> None:
        spec = parts.spec
        self.wq_b = parts.matrix("wq_b.weight")
        self.weights_proj = parts.matrix("weights_proj.weight")
        self.compressor = Compressor(parts.below("compressor"), CSA_RATIO)
        self._heads = spec.index_heads
        self._dim = spec.index_dim
        self._topk = spec.index_topk
        self._scale = spec.index_dim**-0.5 * spec.index_heads**-0.5
        self._ops = parts.ops

    def forward(
        self,
        x: Tensor,
        query: Tensor,
        raw: Sequence[Tensor],
        table: Tensor,
        entry_table: Tensor | None,
        batch: Batch,
        state: LayerState,
    ) -> Tensor:
        """Store new index keys and choose entries for every row.

        Args:
            x: [rows, hidden] float32, the attention's input.
            query: [rows, q_lora] float32, the attention's low-rank query.
            raw: values and scores of the rows for this compressor.
            table: rotary table of the rows.
            entry_table: rotary table of the entries that become complete, if any.
            batch: the rows.
            state: the layer's state.

        Returns:
            [rows, n] int64 entries, ascending, -1 for absent ones at the end.
        """
        assert state.index_carry is not None
        assert state.index_keys is not None
        pooled = self.compressor.forward(raw[0], raw[1], batch, state.index_carry)
        if pooled is not None and entry_table is not None:
            keys, emissions = pooled
            keys = self._prepared(self._ops.rope(keys, entry_table), state.index_keys)
            state.index_keys.write(emissions.target, keys)
        most = batch.most_visible[CSA_RATIO]
        if most <= self._topk:
            return all_visible(batch.visible[CSA_RATIO], most)
        return self._ops.select(self._scores(x, query, table, batch, state.index_keys), self._topk)

    def _scores(self, x: Tensor, query: Tensor, table: Tensor, batch: Batch, keys: Pool) -> Tensor:
        q = self._ops.linear(query, self.wq_b).unflatten(1, (self._heads, self._dim))
        q = self._prepared(self._ops.rope(q, table).flatten(0, 1), keys)
        q = keys.format.decode(keys.format.encode(q)).unflatten(0, (-1, self._heads))
        weights = self._ops.linear(x, self.weights_proj) * self._scale
        stride = batch.page_table.shape[1] * keys.per_page
        return self._ops.index_scores(
            q,
            weights,
            keys.read(batch.page_table),
            batch.span * stride,
            batch.visible[CSA_RATIO],
            batch.most_visible[CSA_RATIO],
        )

    def _prepared(self, rows: Tensor, keys: Pool) -> Tensor:
        """Spread outliers before a rounding; without a rounding it cancels in the product."""
        return self._ops.hadamard(rows) if keys.format.dtype == torch.uint8 else rows


def all_visible(visible: Tensor, most: int) -> Tensor:
    """Return entries 0..most - 1 for every row [rows, most], -1 beyond `visible` [rows]."""
    entries = torch.arange(most).expand(visible.shape[0], most)
    return entries.masked_fill(entries >= visible.unsqueeze(1), -1)
