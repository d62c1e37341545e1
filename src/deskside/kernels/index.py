"""The compiled scores of compressed entries, and the choice among them."""

import torch
from torch import Tensor

from deskside.kernels import _native
from deskside.kernels.addresses import floats, integers

__all__ = ["hadamard", "index_scores", "select"]


def index_scores(
    q: Tensor, weights: Tensor, keys: Tensor, first: Tensor, visible: Tensor, entries: int
) -> Tensor:
    """Score the entries a row can see; see `ops.index.index_scores`."""
    rows, heads, width = q.shape
    assert weights.shape == (rows, heads)
    assert keys.shape[1] == width
    assert first.shape[0] == visible.shape[0] == rows
    out = torch.empty((rows, entries))
    _native.index_scores(
        floats(q),
        rows,
        heads,
        width,
        floats(weights),
        floats(keys),
        integers(first, torch.int64),
        integers(visible, torch.int64),
        entries,
        out.data_ptr(),
    )
    return out


def hadamard(x: Tensor) -> Tensor:
    """Apply the orthonormal Hadamard transform to the last dimension; see `ops.index.hadamard`."""
    width = x.shape[-1]
    assert width & (width - 1) == 0
    out = torch.empty_like(x)
    _native.hadamard(floats(x), x.numel() // width, width, width**-0.5, out.data_ptr())
    return out


def select(scores: Tensor, count: int) -> Tensor:
    """Return the best columns of every row, ascending; see `ops.index.select`."""
    rows, columns = scores.shape
    count = min(count, columns)
    out = torch.empty((rows, count), dtype=torch.int64)
    _native.select(floats(scores), rows, columns, count, out.data_ptr())
    return out
