"""Rounding to what the checkpoint and its cache store, as plain torch on any device.

Weights: MXFP4 for routed experts, FP8 with 128x128 blocks for the other large matrices, BF16 for
the rest. Cached rows: FP8 in blocks of 64, index rows FP4 in blocks of 32 after a Hadamard
transform; these two pass gradients straight through.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor


def power_above(x: Tensor) -> Tensor:
    """The exponent of the least power of two that is not below a positive x."""
    mantissa, exponent = torch.frexp(x)
    return exponent - (mantissa == 0.5).to(exponent.dtype)


def e2m1_round(x: Tensor) -> Tensor:
    """The nearest E2M1 value."""
    size = x.abs().clamp(max=6)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.copysign(torch.round(size / step) * step, x)


def fp8_cache(x: Tensor) -> Tensor:
    """FP8 rounding of cached rows in blocks of 64, straight-through."""
    wide = x.detach().float().unflatten(-1, (-1, 64))
    top = wide.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = torch.exp2(torch.ceil(torch.log2(top / 448)))
    rounded = ((wide / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale).flatten(-2)
    return x + (rounded.to(x.dtype) - x.detach())


def fp4_cache(x: Tensor) -> Tensor:
    """FP4 rounding of index rows in blocks of 32, straight-through."""
    wide = x.detach().float().unflatten(-1, (-1, 32))
    top = wide.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    scale = torch.exp2(torch.ceil(torch.log2(top / 6)))
    rounded = (e2m1_round(wide / scale) * scale).flatten(-2)
    return x + (rounded.to(x.dtype) - x.detach())


@lru_cache(maxsize=8)
def hadamard_matrix(size: int) -> Tensor:
    """Sylvester's matrix, scaled to be orthogonal."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix * size**-0.5


def hadamard(x: Tensor) -> Tensor:
    """The transform over the last dim."""
    return x @ hadamard_matrix(x.shape[-1]).to(device=x.device, dtype=x.dtype)


def mxfp4_encode(weight: Tensor) -> tuple[Tensor, Tensor]:
    """E2M1 values (still floats) and exponents [..., in/32]; the better of two scales a block."""
    blocks = weight.float().unflatten(-1, (-1, 32))
    top = blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    first = power_above(top / 6)
    best_error = torch.full_like(top, math.inf)
    best = first.clone()
    for shift in (0, -1):
        scale = torch.exp2((first + shift).float())
        error = (e2m1_round(blocks / scale) * scale - blocks).square().sum(-1, keepdim=True)
        better = error <= best_error
        best_error = torch.where(better, error, best_error)
        best = torch.where(better, first + shift, best)
    values = e2m1_round(blocks / torch.exp2(best.float()))
    return values.flatten(-2), best.squeeze(-1)


def mxfp4_round(weight: Tensor) -> Tensor:
    """What a reader of the packed weight sees, in float32."""
    values, exponent = mxfp4_encode(weight)
    scale = torch.exp2(exponent.float())
    return (values.unflatten(-1, (-1, 32)) * scale[..., None]).flatten(-2)


def fp8_encode(weight: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 codes and exponents [..., ceil(out/128), ceil(in/128)] of the last two dims."""
    rows, columns = weight.shape[-2:]
    padded = F.pad(weight.float(), (0, -columns % 128, 0, -rows % 128))
    blocks = padded.unflatten(-1, (-1, 128)).unflatten(-3, (-1, 128))
    top = blocks.abs().amax((-3, -1)).clamp(min=2.0**-100)
    exponent = power_above(top / 448)
    scale = torch.exp2(exponent.float())[..., :, None, :, None]
    codes = (blocks / scale).clamp(-448, 448).flatten(-4, -3).flatten(-2)
    return codes[..., :rows, :columns].to(torch.float8_e4m3fn), exponent


def fp8_round(weight: Tensor) -> Tensor:
    """What a reader of the packed weight sees, in float32."""
    codes, exponent = fp8_encode(weight)
    rows, columns = weight.shape[-2:]
    scale = torch.exp2(exponent.float()).repeat_interleave(128, -2)[..., :rows, :]
    return codes.float() * scale.repeat_interleave(128, -1)[..., :columns]


def stored_as(name: str) -> str:
    """How the checkpoint stores a parameter of trunk or drafter: fp4, fp8, bf16, f32.

    `wide` is F32 that holds BF16 values: what the training multiplied with.
    """
    if ".experts." in name:
        return "fp4"
    if name.endswith("_fn"):
        return "wide"
    if "_base" in name or "_scale" in name:
        return "f32"
    if name.endswith(("ape", "attn_sink", "gate.bias")):
        return "f32"
    if "compressor" in name or name.startswith(("embed", "head", "norm")) or "norm" in name:
        return "bf16"
    if name.endswith(("gate.weight", "weights_proj.weight")):
        return "bf16"
    if "markov_head" in name or "confidence_head" in name:
        return "bf16"
    return "fp8"


def stored_value(name: str, weight: Tensor) -> Tensor:
    """A parameter after a round trip through the checkpoint, in float32."""
    kind = stored_as(name)
    if kind == "fp4":
        return mxfp4_round(weight)
    if kind == "fp8":
        return fp8_round(weight)
    if kind in ("bf16", "wide"):
        return weight.to(torch.bfloat16).float()
    return weight.float()
