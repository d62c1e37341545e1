"""Matrix products over stored weights, and the RMS norm that stands beside them.

The definition: decode the weight to float32, multiply, and add the partial sums of fixed leaves of
the inner dimension along a fixed tree, so that ranks which share a sum can continue the same tree.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear as dense

from deskside.formats.packed import Packed
from deskside.ops.tiles import COLUMN_TILE, pairwise_sum, rowwise, tiles

__all__ = ["Weight", "as_float", "linear", "rms_norm"]

Weight = Tensor | Packed
"""A matrix [out, in] as stored: float32, bfloat16, or packed codes with their scales."""


def as_float(weight: Weight) -> Tensor:
    """Return a stored weight as float32 of the same logical shape."""
    return weight.decode() if isinstance(weight, Packed) else weight.float()


def linear(x: Tensor, weight: Weight, leaves: int = 1) -> Tensor:
    """Multiply rows by a stored weight.

    Args:
        x: [rows, in] float32.
        weight: [out, in], any stored form.
        leaves: equal cuts of the inner dimension, summed along a fixed pairwise tree.

    Returns:
        [rows, out] float32.
    """
    return _linear(x, as_float(weight), leaves)


@rowwise("x")
def _linear(x: Tensor, weight: Tensor, leaves: int) -> Tensor:
    width = x.shape[1] // leaves
    cuts = [slice(i * width, (i + 1) * width) for i in range(leaves)]
    sums = [
        pairwise_sum([dense(x[:, cut], tile[:, cut]) for cut in cuts])
        for tile in tiles(weight, COLUMN_TILE)
    ]
    return torch.cat(sums, dim=1)[:, : weight.shape[0]]


@rowwise("x")
def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Scale rows to unit root mean square over their last dimension, then by `weight`.

    Args:
        x: [rows, ..., width] float32.
        weight: [width] in any float type, or None for no weight.
        eps: added to the mean square.

    Returns:
        float32 of the shape of `x`.
    """
    scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return scaled if weight is None else scaled * weight.float()
