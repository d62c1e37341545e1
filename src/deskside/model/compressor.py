"""The compressor: pools the raw rows of 4 or 128 tokens into one entry.

Raw rows (value and score) go through a carry ring, so an entry can reach back over earlier
forwards. With ratio 4 neighbouring entries overlap: the first half of a raw row serves the next
entry, the second half its own.
"""

import torch
from torch import Tensor

from deskside.batch import Batch, Emissions
from deskside.model.parts import Parts
from deskside.spec import CSA_RATIO
from deskside.state.kv import Ring

__all__ = ["Compressor"]


class Compressor:
    """Weights `wkv`, `wgate`, `ape` and `norm` of one compressor of one ratio."""

    def __init__(self, parts: Parts, ratio: int) -> None:
        self.wkv = parts.matrix("wkv.weight")
        self.wgate = parts.matrix("wgate.weight")
        self.ape = parts.tensor("ape")
        self.norm = parts.tensor("norm.weight")
        self.ratio = ratio
        self._eps = parts.spec.norm_eps
        self._ops = parts.ops

    def forward(
        self, values: Tensor, scores: Tensor, batch: Batch, carry: Ring
    ) -> tuple[Tensor, Emissions] | None:
        """Add rows to the carry and pool the entries that become complete.

        Args:
            values: [rows, width] float32, the rows' product with `wkv`.
            scores: [rows, width] float32, with `wgate`.
            batch: the rows.
            carry: this compressor's ring of raw rows.

        Returns:
            Normed entries [entries, width] float32, before rotation, and where they go; None when
            no entry became complete.
        """
        scores = scores + self.ape[batch.positions % self.ratio]
        raw = carry.extend(
            torch.cat((values, scores), dim=1), batch.slots, batch.stage[carry.length]
        )
        emissions = batch.emissions.get(self.ratio)
        if emissions is None:
            return None
        pooled = self._ops.pool(*self._halves(raw[emissions.source]), emissions.absent)
        return self._ops.rms_norm(pooled, self.norm, self._eps), emissions

    def _halves(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Return values and scores [entries, rows, width] of raw rows [entries, rows, ...]."""
        values, scores = raw.chunk(2, dim=2)
        if self.ratio != CSA_RATIO:
            return values.contiguous(), scores.contiguous()
        return _overlapped(values), _overlapped(scores)


def _overlapped(rows: Tensor) -> Tensor:
    """Take the first half of the columns from the earlier window, the second from the later."""
    half = rows.shape[2] // 2
    earlier, later = rows.split(CSA_RATIO, dim=1)
    return torch.cat((earlier[:, :, :half], later[:, :, half:]), dim=1)
