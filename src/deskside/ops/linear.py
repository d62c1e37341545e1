"""Matrix products over stored weights, and the RMS norm that stands beside them.

The definition: decode the weight to float32, multiply, and add the partial sums of fixed leaves of
the inner dimension along a fixed tree, so that ranks which share a sum can continue the same tree.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import linear as dense

from deskside.formats.packed import Format, Packed
from deskside.ops.tiles import COLUMN_TILE, pairwise_sum, rowwise, tiles

__all__ = [
    "BF16",
    "F32",
    "FP8",
    "MXFP4",
    "Bundle",
    "Weight",
    "as_float",
    "grouped_linear",
    "kind_of",
    "linear",
    "linears",
    "rms_norm",
]

Weight = Tensor | Packed
"""A matrix [out, in] as stored: float32, bfloat16, or packed codes with their scales."""

F32, BF16, FP8, MXFP4 = range(4)
"""The kinds of stored matrices, as compiled bodies number them."""


def kind_of(weight: Weight) -> int:
    """Return the kind of a contiguous matrix."""
    if isinstance(weight, Packed):
        assert weight.codes.is_contiguous()
        assert weight.scales.is_contiguous()
        return MXFP4 if weight.format is Format.MXFP4 else FP8
    assert weight.is_contiguous()
    if weight.dtype is torch.float32:
        return F32
    assert weight.dtype is torch.bfloat16
    return BF16


@dataclass(frozen=True, eq=False)
class Bundle:
    """Matrices [out, in] that are multiplied together, because they read rows of one width.

    They stay where they are: a bundle holds them, and where they lie is looked up once.
    """

    weights: tuple[Weight, ...]

    def __post_init__(self) -> None:
        """Hold that one set of rows fits all."""
        assert len({_shape(weight)[1] for weight in self.weights}) == 1

    @cached_property
    def inner(self) -> int:
        """Input features, the same for all."""
        return _shape(self.weights[0])[1]

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """Output features of each."""
        return tuple(_shape(weight)[0] for weight in self.weights)

    @cached_property
    def table(self) -> Tensor:
        """[matrices, 4] int64: kind, address of values or codes, of scales, output features."""
        rows = [
            (kind_of(one), one.codes.data_ptr(), one.scales.data_ptr(), columns)
            if isinstance(one, Packed)
            else (kind_of(one), one.data_ptr(), 0, columns)
            for one, columns in zip(self.weights, self.columns, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.int64)

    @cached_property
    def address(self) -> int:
        """Where the table lies, for compiled bodies; the matrices must not move any more."""
        return self.table.data_ptr()


def _shape(weight: Weight) -> tuple[int, int]:
    if isinstance(weight, Packed):
        return weight.rows, weight.columns
    rows, columns = weight.shape
    return rows, columns


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


def linears(x: Tensor, bundle: Bundle) -> tuple[Tensor, ...]:
    """Multiply rows [rows, in] by every matrix of a bundle: [rows, out] of each."""
    return tuple(linear(x, weight) for weight in bundle.weights)


def grouped_linear(x: Tensor, bundle: Bundle) -> Tensor:
    """Multiply the i-th group of columns by the i-th matrix; no numerics round these rows.

    Args:
        x: [rows, groups * in] float32.
        bundle: a matrix [out, in] for each group.

    Returns:
        [rows, groups * out] float32, side by side.
    """
    groups = x.split(bundle.inner, dim=1)
    parts = [linear(group, weight) for group, weight in zip(groups, bundle.weights, strict=True)]
    return torch.cat(parts, dim=1)


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
