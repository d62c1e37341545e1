"""The compiled matrix product over stored weights, and the RMS norm."""

import torch
from torch import Tensor

from deskside.formats.packed import Packed
from deskside.kernels import _native
from deskside.kernels.addresses import floats, integers
from deskside.ops.linear import BF16, F32, FP8, Bundle, Weight, kind_of

__all__ = ["grouped_linear", "linear", "linears", "rms_norm"]

_MAX_LEAVES = 64
_UNIT, _BLOCK = 32, 128


def linear(x: Tensor, weight: Weight, leaves: int = 1) -> Tensor:
    """Multiply rows by a stored weight; see `ops.linear.linear`.

    `x` is [rows, in] float32 whose rows may lie apart; the weight is contiguous.
    """
    rows, inner = x.shape
    kind = kind_of(weight)
    if isinstance(weight, Packed):
        columns, width = weight.rows, weight.columns
        codes, scales = weight.codes.data_ptr(), weight.scales.data_ptr()
    else:
        columns, width = weight.shape
        codes, scales = weight.data_ptr(), 0
    assert width == inner
    assert 1 <= leaves <= _MAX_LEAVES
    assert leaves == 1 or _cuts(kind, inner, leaves)
    out = torch.empty(rows, columns)
    address, stride = _places(x)
    _native.linear(
        kind,
        address,
        rows,
        inner,
        stride,
        codes,
        scales,
        columns,
        leaves,
        out.data_ptr(),
        columns,
    )
    return out


def linears(x: Tensor, bundle: Bundle) -> tuple[Tensor, ...]:
    """Multiply rows by every matrix of a bundle; see `ops.linear.linears`."""
    rows = x.shape[0]
    assert x.shape[1] == bundle.inner
    assert len(bundle.columns) <= _native.MOST_MATRICES
    outs = [torch.empty(rows, columns) for columns in bundle.columns]
    address, stride = _places(x)
    places = [out.data_ptr() for out in outs]
    _native.linears(address, rows, bundle.inner, stride, bundle.address, places)
    return tuple(outs)


def grouped_linear(x: Tensor, bundle: Bundle) -> Tensor:
    """Multiply groups of columns by their matrices; see `ops.linear.grouped_linear`."""
    rows, width = x.shape
    groups = len(bundle.columns)
    assert width == groups * bundle.inner
    assert groups <= _native.MOST_MATRICES
    total = sum(bundle.columns)
    out = torch.empty(rows, total)
    address, stride = _places(x)
    _native.grouped_linear(
        address,
        rows,
        bundle.inner,
        stride,
        bundle.address,
        groups,
        out.data_ptr(),
        total,
    )
    return out


def _places(x: Tensor) -> tuple[int, int]:
    """Return the address of rows that may lie apart, and how far."""
    assert x.dtype is torch.float32
    stride, step = x.stride()
    assert step == 1
    return x.data_ptr(), stride


def _cuts(kind: int, inner: int, leaves: int) -> bool:
    """Whether leaves end where a unit of the stored format ends."""
    leaf = inner // leaves
    if kind in (F32, BF16):
        return inner % leaves == 0
    return inner % leaves == 0 and (leaf % _UNIT == 0 or (kind == FP8 and _BLOCK % leaf == 0))


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
