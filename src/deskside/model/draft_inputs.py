"""The inputs of a draft: blocks of the anchor and noise rows, as one more ragged batch.

A block's rows all see the same keys: up to `window` context rows before the anchor, and the whole
block, rows behind them included. Pure index arithmetic on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deskside.batch import Batch, Kinds
from deskside.spec import ModelSpec

__all__ = ["Anchor", "draft_batch"]


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a draft starts: the last emitted token, which no forward has processed yet."""

    token: int
    position: int
    """Absolute; the rows before it are history."""
    slot: int
    """Ring slot of the sequence."""


def draft_batch(spec: ModelSpec, anchors: Sequence[Anchor]) -> Batch:
    """Build the blocks of one or more sequences, `block` rows each."""
    assert spec.drafter is not None
    block, window, count = spec.drafter.block, spec.window, len(anchors)
    places = torch.arange(block)
    starts = torch.tensor([anchor.position for anchor in anchors])
    number = torch.arange(count).unsqueeze(1)
    seen = starts.unsqueeze(1) + torch.arange(-window, 0)
    context = (number * window + seen % window).masked_fill(seen < 0, -1)
    own = count * window + number * block + places
    keys = torch.cat((context, own), dim=1).to(torch.int32)
    noise = [spec.drafter.noise_token] * (block - 1)
    return Batch(
        ids=torch.tensor([token for anchor in anchors for token in (anchor.token, *noise)]),
        positions=(starts.unsqueeze(1) + places).flatten(),
        span=number.squeeze(1).repeat_interleave(block),
        kinds=Kinds.of(torch.ones(count * block, dtype=torch.bool)),
        slots=torch.tensor([anchor.slot for anchor in anchors]),
        window_index=keys.repeat_interleave(block, dim=0),
        page_table=torch.empty(count, 0, dtype=torch.int64),
        emissions={},
        visible={},
        most_visible={},
        stage={window: torch.empty(0, dtype=torch.int64)},
        logit_rows=torch.arange(count * block),
    )
