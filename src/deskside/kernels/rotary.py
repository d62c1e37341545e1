"""The compiled rotation of rows by their positions."""

import torch
from torch import Tensor

from deskside.kernels import _native
from deskside.kernels.addresses import floats

__all__ = ["rope"]


def rope(x: Tensor, table: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the last dimensions of every row by its position; see `ops.rotary.rope`."""
    rows, width = x.shape[0], x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    half = table.shape[2]
    assert table.shape == (rows, 2, half)
    assert 2 * half <= width
    out = torch.empty_like(x)
    _native.rope(floats(x), rows, heads, width, floats(table), half, inverse, out.data_ptr())
    return out
