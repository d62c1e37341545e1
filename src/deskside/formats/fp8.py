"""FP8 weights: E4M3 elements with one E8M0 scale per 128 x 128 block of a matrix.

Blocks at the lower and right edge may be partial. Knows no shards and no files; runs on any device.
"""

import torch
from torch import Tensor

from deskside.errors import InputError
from deskside.formats import e8m0

__all__ = ["BLOCK", "LARGEST", "decode", "encode"]

BLOCK = 128
LARGEST = 448.0


def decode(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the float32 values of codes [..., out, in] (float8_e4m3fn, or uint8 holding its bits).

    `scales` are bytes [..., ceil(out / 128), ceil(in / 128)]; 255 gives NaN.
    """
    rows, columns = codes.shape[-2:]
    assert scales.shape[-2:] == (_blocks(rows), _blocks(columns))
    values = codes.view(torch.float8_e4m3fn).to(torch.float32)
    return values.mul_(_spread(e8m0.to_float(scales), rows, columns))


def encode(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes float8_e4m3fn [..., out, in] and scales uint8 for values [..., out, in].

    A block's scale is the least power of two with amax / scale <= 448; zeros take 2^-127.

    Raises:
        InputError: a value is NaN or infinite.
    """
    rows, columns = values.shape[-2:]
    values = values.to(torch.float32)
    padding = (0, -columns % BLOCK, 0, -rows % BLOCK)
    padded = torch.nn.functional.pad(values.abs(), padding)
    shape = (*values.shape[:-2], _blocks(rows), BLOCK, _blocks(columns), BLOCK)
    amax = padded.reshape(shape).amax((-1, -3))
    if not bool(amax.isfinite().all()):
        raise InputError("FP8 cannot hold NaN or infinite values")
    exponents = e8m0.exponent_for(amax, LARGEST)
    scaled = values * _spread(e8m0.power(-exponents), rows, columns)
    # Past 448 the cast gives NaN; only values at the very top of float32 get there.
    codes = scaled.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return codes, e8m0.to_bytes(exponents)


def _blocks(length: int) -> int:
    return -(-length // BLOCK)


def _spread(blocks: Tensor, rows: int, columns: int) -> Tensor:
    """Repeat one number per block over the block's elements."""
    tall = blocks.repeat_interleave(BLOCK, dim=-2)[..., :rows, :]
    return tall.repeat_interleave(BLOCK, dim=-1)[..., :columns]
