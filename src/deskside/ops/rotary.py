"""Rotary position embedding on the last dimensions of a head, plain and YaRN-scaled.

Pairs are interleaved (2i, 2i+1). Angles are formed in float64 from the absolute position, so that a
late position loses nothing. No attention factor is applied anywhere.
"""

import math

import torch
from torch import Tensor

from deskside.ops.tiles import rowwise
from deskside.spec import ModelSpec

__all__ = ["compress_frequencies", "plain_frequencies", "rope", "rope_table"]


def plain_frequencies(spec: ModelSpec) -> Tensor:
    """Angular frequencies [rope/2] float64 of layers without compression."""
    return _powers(spec.rope_theta, spec.rope_dim)


def compress_frequencies(spec: ModelSpec) -> Tensor:
    """Angular frequencies [rope/2] float64 of compressed layers, YaRN applied where configured.

    Frequencies that turn more than `beta_fast` times over the original length stay, those that
    turn less than `beta_slow` times are divided by the factor, between them the mix is linear.
    """
    frequencies = _powers(spec.compress_rope_theta, spec.rope_dim)
    if spec.yarn is None:
        return frequencies
    yarn = spec.yarn

    def index_of(turns: float) -> float:
        ratio = yarn.original / (turns * 2 * math.pi)
        return spec.rope_dim * math.log(ratio) / (2 * math.log(spec.compress_rope_theta))

    low = max(math.floor(index_of(yarn.beta_fast)), 0)
    high = min(math.ceil(index_of(yarn.beta_slow)), spec.rope_dim - 1)
    steps = torch.arange(spec.rope_dim // 2, dtype=torch.float64)
    scaled = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies * (1 - scaled) + frequencies / yarn.factor * scaled


def _powers(theta: float, dims: int) -> Tensor:
    steps = torch.arange(0, dims, 2, dtype=torch.float64)
    return torch.pow(torch.tensor(theta, dtype=torch.float64), -steps / dims)


@rowwise("positions")
def rope_table(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Cosines and sines of every position.

    Args:
        positions: [rows] int64, absolute.
        frequencies: [rope/2] float64.

    Returns:
        [rows, 2, rope/2] float32: cosines, then sines.
    """
    angles = positions.double().unsqueeze(1) * frequencies
    return torch.stack((angles.cos(), angles.sin()), dim=1).float()


@rowwise("x", "table")
def rope(x: Tensor, table: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the last dimensions of every row by its position.

    Args:
        x: [rows, width] or [rows, heads, width] float32; the last `rope` dimensions turn.
        table: [rows, 2, rope/2] from `rope_table`.
        inverse: turn back instead.

    Returns:
        float32 of the shape of `x`.
    """
    half = table.shape[2]
    shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (half,)
    cos = table[:, 0].reshape(shape)
    sin = table[:, 1].reshape(shape)
    if inverse:
        sin = -sin
    still, turning = x[..., : -2 * half], x[..., -2 * half :]
    even, odd = turning[..., 0::2], turning[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return torch.cat((still, turned.flatten(-2)), dim=-1)
