"""E8M0 block scales: one byte b stands for 2^(b - 127), and 255 for NaN.

Owns the bytes' meaning and the choice of a power of two for a block. Knows no element format.
"""

import math

import torch
from torch import Tensor

from deskside.errors import CheckpointError

__all__ = ["NAN", "check_scales", "exponent_for", "power", "to_bytes", "to_float"]

NAN = 255
BIAS = 127
LEAST, MOST = -127, 127


def power(exponents: Tensor) -> Tensor:
    """Return 2^e as float32 for integer e in [-127, 128]; 128 gives NaN, as byte 255 does.

    Built from bits: 2^-127 is a float32 subnormal, which `pow` and `ldexp` may flush.
    """
    bits = (exponents.to(torch.int32) + BIAS) << 23
    bits = torch.where(exponents == LEAST, 0x00400000, bits)
    return torch.where(exponents == MOST + 1, 0x7FC00000, bits).view(torch.float32)


def exponent_for(amax: Tensor, largest: float) -> Tensor:
    """Return the least int32 e >= -127 with amax <= largest * 2^e; -127 for amax = 0.

    `amax` is float32, non-negative and finite; `largest` is the element format's largest value. No
    e is returned for which largest * 2^e passes float32, so the top of the range clips instead.
    """
    mantissa, exponent = torch.frexp(amax)
    top_mantissa, top_exponent = math.frexp(largest)
    least = exponent.to(torch.int32) - top_exponent
    least = torch.where(mantissa > top_mantissa, least + 1, least)
    return torch.where(amax == 0, LEAST, least).clamp(LEAST, 128 - top_exponent)


def to_bytes(exponents: Tensor) -> Tensor:
    """Return the uint8 codes of exponents in [-127, 127]."""
    return (exponents + BIAS).to(torch.uint8)


def to_float(scales: Tensor) -> Tensor:
    """Return the float32 values of scale bytes (uint8, or float8_e8m0fnu)."""
    return power(scales.view(torch.uint8).to(torch.int32) - BIAS)


def check_scales(scales: Tensor, name: str) -> None:
    """Refuse scale bytes of 255 (NaN).

    Raises:
        CheckpointError: names the tensor and the first place.
    """
    bad = scales.view(torch.uint8) == NAN
    if bool(bad.any()):
        place = [int(i) for i in bad.nonzero()[0]]
        raise CheckpointError(
            f"{name}: scale byte 255 (NaN) at {place}, {int(bad.sum())} in all; "
            "the file is damaged, download it again"
        )
