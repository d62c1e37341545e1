"""Attention of one layer: a window of recent rows, compressed entries and a sink, one KV head."""

from collections.abc import Sequence

import torch
from torch import Tensor

from deskside.batch import Batch
from deskside.model.compressor import Compressor
from deskside.model.indexer import Indexer, all_visible
from deskside.model.parts import Parts, cut_rows, leaves_of
from deskside.model.rotary import RotaryTables
from deskside.ops.linear import Bundle
from deskside.spec import CSA_RATIO
from deskside.state.kv import LayerState, Pool

__all__ = ["Attention"]


class Attention:
    """Weights of one attention sub-layer, named as in the checkpoint."""

    def __init__(self, parts: Parts, ratio: int) -> None:
        spec = parts.spec
        self.wq_a = parts.matrix("wq_a.weight")
        self.q_norm = parts.tensor("q_norm.weight")
        self.wq_b = parts.matrix("wq_b.weight")
        self.wkv = parts.matrix("wkv.weight")
        self.kv_norm = parts.tensor("kv_norm.weight")
        self.wo_a = Bundle(cut_rows(parts.matrix("wo_a.weight"), parts.ranks.share(spec.o_groups)))
        self.wo_b = parts.matrix("wo_b.weight")
        self.attn_sink = parts.tensor("attn_sink")
        self.compressor = Compressor(parts.below("compressor"), ratio) if ratio else None
        self.indexer = Indexer(parts.below("indexer")) if ratio == CSA_RATIO else None
        pooled = [self.compressor, self.indexer and self.indexer.compressor]
        self._inputs = Bundle(
            (self.wq_a, self.wkv, *(m for one in pooled if one for m in (one.wkv, one.wgate)))
        )
        self.ratio = ratio
        self._spec = spec
        self._ops = parts.ops
        self._ranks = parts.ranks

    def forward(self, x: Tensor, batch: Batch, tables: RotaryTables, state: LayerState) -> Tensor:
        """Attend rows [rows, hidden] float32 and project back to [rows, hidden]."""
        spec, ops = self._spec, self._ops
        table = tables.rows(self.ratio)
        low, kv, *raw = ops.linears(x, self._inputs)
        query = ops.rms_norm(low, self.q_norm, spec.norm_eps)
        q = ops.linear(query, self.wq_b).unflatten(1, (-1, spec.head_dim))
        q = ops.rope(ops.rms_norm(q, None, spec.norm_eps), table)
        window = state.window
        keys = window.extend(self.keys(kv, table), batch.slots, batch.stage[window.length])
        entry_keys, entry_index = self._entries(x, query, raw, batch, tables, state)
        attended = ops.attend(
            q,
            keys,
            batch.window_index,
            entry_keys,
            entry_index.to(torch.int32),
            self.attn_sink,
            spec.head_dim**-0.5,
        )
        return self._project(ops.rope(attended, table, True))

    def keys(self, kv: Tensor, table: Tensor) -> Tensor:
        """Return what rows leave in the window, [rows, head_dim], of their product with `wkv`."""
        return self._ops.rope(self._ops.rms_norm(kv, self.kv_norm, self._spec.norm_eps), table)

    def _project(self, attended: Tensor) -> Tensor:
        joined = self._ops.grouped_linear(attended.flatten(1), self.wo_a)
        leaves = self._ranks.share(leaves_of(self._spec.o_groups * self._spec.o_lora))
        return self._ranks.total(self._ops.linear(joined, self.wo_b, leaves))

    def _entries(
        self,
        x: Tensor,
        query: Tensor,
        raw: Sequence[Tensor],
        batch: Batch,
        tables: RotaryTables,
        state: LayerState,
    ) -> tuple[Tensor, Tensor]:
        """Store new entries; return entry keys and every row's index into them.

        `raw` holds values and scores of the rows for the compressor, then for the indexer's.
        """
        if self.compressor is None:
            return x.new_zeros(1, self._spec.head_dim), x.new_zeros((x.shape[0], 0))
        assert state.carry is not None
        assert state.entries is not None
        table = tables.entries(self.ratio)
        pooled = self.compressor.forward(raw[0], raw[1], batch, state.carry)
        if pooled is not None and table is not None:
            entries, emissions = pooled
            state.entries.write(emissions.target, self._ops.rope(entries, table))
        if self.indexer is None:
            chosen = all_visible(batch.visible[self.ratio], batch.most_visible[self.ratio])
        else:
            rows = tables.rows(self.ratio)
            chosen = self.indexer.forward(x, query, raw[2:], rows, table, batch, state)
        return _read(state.entries, batch, chosen)


def _read(pool: Pool, batch: Batch, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Decode the chosen entries, or all of them where that is less work."""
    stride = batch.page_table.shape[1] * pool.per_page
    if chosen.numel() < batch.page_table.shape[0] * stride:
        keys = pool.gather(batch.page_table, batch.span, chosen)
        index = torch.arange(chosen.numel()).view(chosen.shape)
    else:
        keys = pool.read(batch.page_table)
        index = chosen + batch.span.unsqueeze(1) * stride
    return keys, index.masked_fill(chosen < 0, -1)
