"""The compiled CPU bodies of the operations: same signatures as the definitions in `ops`.

Owns the border to C++: asserts types and shapes, makes the results, passes addresses. A row's bits
never depend on other rows, on threads or on the instruction set (`tier`); they differ from those of
the plain bodies by rounding alone.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from deskside.formats.packed import Format, Packed
from deskside.kernels import _native

__all__ = ["bodies", "force_tier", "linear", "set_threads", "threads", "tier", "tiers"]

_F32, _BF16, _FP8, _MXFP4 = range(4)
_MAX_LEAVES = 64

tiers: Callable[[], list[str]] = _native.tiers
"""Instruction-set tiers that run on this machine, widest first."""

tier: Callable[[], str] = _native.tier
"""The tier in use."""

force_tier: Callable[[str], None] = _native.force_tier
"""Use another of `tiers()`: slower, and equal bit for bit."""

set_threads: Callable[[int], None] = _native.set_threads
"""Set how many threads share a kernel, the caller among them; 1 until called."""

threads: Callable[[], int] = _native.threads
"""Threads that share a kernel."""


def bodies() -> Mapping[str, Callable[..., Any]]:
    """Return the body of each operation that is compiled, by the operation's name."""
    return {"linear": linear}


def linear(x: Tensor, weight: Tensor | Packed, leaves: int = 1) -> Tensor:
    """Multiply rows by a stored weight; see `ops.linear.linear`.

    `x` is [rows, in] float32 whose rows may lie apart; the weight is contiguous.
    """
    assert x.dtype is torch.float32
    rows, inner = x.shape
    x_stride, step = x.stride()
    assert step == 1
    if isinstance(weight, Tensor):
        assert weight.is_contiguous()
        kind = _F32 if weight.dtype is torch.float32 else _BF16
        assert kind == _F32 or weight.dtype is torch.bfloat16
        columns, width = weight.shape
        codes, scales = weight.data_ptr(), 0
        assert inner % leaves == 0
    else:
        kind, columns, width, codes, scales = _packed(weight)
        assert inner % leaves == 0
        leaf = inner // leaves
        assert leaves == 1 or leaf % 32 == 0 or (kind == _FP8 and 128 % leaf == 0)
    assert width == inner
    assert 1 <= leaves <= _MAX_LEAVES
    out = torch.empty((rows, columns))
    _native.linear(
        kind,
        x.data_ptr(),
        rows,
        inner,
        x_stride,
        codes,
        scales,
        columns,
        leaves,
        out.data_ptr(),
        columns,
    )
    return out


def _packed(weight: Packed) -> tuple[int, int, int, int, int]:
    codes, scales = weight.codes, weight.scales
    assert codes.is_contiguous()
    assert scales.is_contiguous()
    columns, width = codes.shape
    if weight.format is Format.MXFP4:
        return _MXFP4, columns, 2 * width, codes.data_ptr(), scales.data_ptr()
    return _FP8, columns, width, codes.data_ptr(), scales.data_ptr()
