"""The official inference's numerics: what a quantized weight multiplies is rounded to FP8 first.

Its kernels multiply FP8 by FP8 (or by MXFP4, which FP8 holds), so that rows lose their low bits in
front of every such weight, and of no other. Owns that rounding, and the operations with it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from deskside.formats import e8m0, fp8, mxfp4
from deskside.formats.packed import Packed
from deskside.ops.integer_moe import Windows
from deskside.ops.linear import Bundle, Weight
from deskside.ops.opset import OpSet

__all__ = ["in_reference", "rounded"]

LEAST = 1e-4
"""The least magnitude that a block's scale is made for."""


def rounded(x: Tensor) -> Tensor:
    """Return rows [..., width] float32 rounded to E4M3, each 128 inputs at one power of two.

    The scale is the least with which the largest magnitude, 1e-4 at least, is at most 448. What is
    not finite becomes NaN.
    """
    width = x.shape[-1]
    padded = torch.nn.functional.pad(x, (0, -width % fp8.BLOCK))
    blocks = padded.unflatten(-1, (-1, fp8.BLOCK))
    sound = blocks.isfinite()
    amax = torch.where(sound, blocks.abs(), 0.0).amax(-1, keepdim=True).clamp(min=LEAST)
    exponents = e8m0.exponent_for(amax, fp8.LARGEST)
    scaled = (blocks * e8m0.power(-exponents)).clamp(-fp8.LARGEST, fp8.LARGEST)
    values = scaled.to(torch.float8_e4m3fn).float() * e8m0.power(exponents)
    return torch.where(sound, values, torch.nan).flatten(-2)[..., :width]


def in_reference(ops: OpSet) -> OpSet:
    """Return the set with rounded inputs in front of quantized weights."""

    def linear(x: Tensor, weight: Weight, leaves: int = 1) -> Tensor:
        return ops.linear(rounded(x) if isinstance(weight, Packed) else x, weight, leaves)

    def linears(x: Tensor, bundle: Bundle) -> tuple[Tensor, ...]:
        return tuple(linear(x, weight) for weight in bundle.weights)

    moe = _experts(ops.linear, ops.swiglu)
    return ops.replaced({"linear": linear, "linears": linears, "moe": moe})


def _experts(
    linear: Callable[[Tensor, Weight], Tensor], swiglu: Callable[[Tensor, Tensor, float], Tensor]
) -> Callable[..., Tensor]:
    """Return `ops.moe.moe` with rounded inputs of all three matrices of an expert."""

    def moe(
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        w1: Packed,
        w3: Packed,
        w2: Packed,
        windows: Windows,
    ) -> Tensor:
        x = rounded(x)
        parts = x.new_zeros(*ids.shape, x.shape[1])
        for expert in range(w1.codes.shape[0]):
            rows, slots = torch.where(ids == expert)
            if rows.shape[0] == 0:
                continue
            gate, up, down = (
                mxfp4.decode(bank.codes[expert], bank.scales[expert]) for bank in (w1, w3, w2)
            )
            hidden = swiglu(linear(x[rows], gate), linear(x[rows], up), windows.limit)
            hidden = rounded(hidden * weights[rows, slots].unsqueeze(1))
            parts[rows, slots] = linear(hidden, down)
        total = parts[:, 0].clone()
        for slot in range(1, ids.shape[1]):
            total += parts[:, slot]
        return total

    return moe
