"""The inputs of a draft: blocks of the anchor and noise rows, as one more ragged batch.

A block's rows all see the same keys: up to `window` context rows before the anchor, and the whole
block, rows behind them included. Pure index arithmetic on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
    starts = np.array([[anchor.position] for anchor in anchors])
    number = np.arange(count)[:, None]
    seen = starts + np.arange(-window, 0)
    keys = np.empty((count, window + block), dtype=np.int32)
    keys[:, :window] = np.where(seen < 0, -1, number * window + seen % window)
    keys[:, window:] = count * window + number * block + np.arange(block)
    noise = (spec.drafter.noise_token,) * (block - 1)
    tokens = [token for anchor in anchors for token in (anchor.token, *noise)]
    return Batch(
        ids=torch.from_numpy(np.array(tokens)),
        positions=torch.from_numpy((starts + np.arange(block)).ravel()),
        span=torch.from_numpy(number.ravel().repeat(block)),
        kinds=Kinds.of(np.ones(count * block, dtype=np.bool_)),
        slots=torch.from_numpy(np.array([anchor.slot for anchor in anchors])),
        window_index=torch.from_numpy(keys.repeat(block, axis=0)),
        page_table=torch.empty(count, 0, dtype=torch.int64),
        emissions={},
        visible={},
        most_visible={},
        stage={window: torch.empty(0, dtype=torch.int64)},
        logit_rows=torch.arange(count * block),
    )
