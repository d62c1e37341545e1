"""The compiled matrix product over stored weights, and the RMS norm."""

import torch
from torch import Tensor

from deskside.formats.packed import Format, Packed
from deskside.kernels import _native
from deskside.kernels.addresses import floats, integers

__all__ = ["linear", "rms_norm"]

_F32, _BF16, _FP8, _MXFP4 = range(4)
_MAX_LEAVES = 64


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


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Scale rows to unit root mean square; see `ops.linear.rms_norm`."""
    width = x.shape[-1]
    out = torch.empty_like(x)
    half_weight = weight is not None and weight.dtype is torch.bfloat16
    if weight is None:
        address = 0
    else:
        assert weight.shape == (width,)
        address = integers(weight, torch.bfloat16) if half_weight else floats(weight)
    rows = x.numel() // width
    _native.rms_norm(floats(x), rows, width, address, half_weight, eps, out.data_ptr())
    return out
