"""The compiled choice of a token."""

import torch
from torch import Tensor

from deskside.kernels import _native
from deskside.kernels.addresses import floats

__all__ = ["best"]


def best(logits: Tensor) -> Tensor:
    """Choose greedily; see `ops.sample.best`."""
    rows, vocab = logits.shape
    assert vocab
    out = torch.empty(rows, dtype=torch.int64)
    _native.best(floats(logits), rows, vocab, out.data_ptr())
    return out
