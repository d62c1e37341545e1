"""The compiled bodies of the routed experts, in exact integers for rows of every kind.

Same signatures as the definitions in `ops`; addresses go to C++, which shares the decode of an
expert's weights among all its rows.
"""

import torch
from torch import Tensor

from deskside.formats.packed import Format, Packed
from deskside.kernels import _native
from deskside.kernels.addresses import floats, integers
from deskside.ops.integer_moe import Windows

__all__ = ["expert_sums", "finish_experts", "moe"]

_Rows = tuple[int, int, int, int, int, int]
_Banks = tuple[int, int, int, int, int, int, int, int]


def moe(
    x: Tensor, ids: Tensor, weights: Tensor, w1: Packed, w3: Packed, w2: Packed, windows: Windows
) -> Tensor:
    """Run every row through its experts; see `ops.moe.moe`.

    In exact integers like generated rows: no processor's floats are faster. The error is that of
    16-bit activations.

    Raises:
        CheckpointError: an id names no expert of the banks.
    """
    sums = expert_sums(x, ids, weights, w1, w3, w2, windows)
    return finish_experts(sums, windows, x, ids, weights)


def expert_sums(
    x: Tensor, ids: Tensor, weights: Tensor, w1: Packed, w3: Packed, w2: Packed, windows: Windows
) -> Tensor:
    """Add a row's experts in exact integers; see `ops.integer_moe.expert_sums`: equal bits.

    Raises:
        CheckpointError: an id names no expert of the banks.
    """
    out = torch.empty(x.shape, dtype=torch.int64)
    rows, banks = _experts(x, ids, weights, w1, w3, w2)
    _native.expert_sums(*rows, *banks, windows.limit, _table(windows), out.data_ptr())
    return out


def finish_experts(
    sums: Tensor, windows: Windows, x: Tensor, ids: Tensor, weights: Tensor
) -> Tensor:
    """Round sums to float32; see `ops.integer_moe.finish_experts`: equal bits."""
    rows, hidden = x.shape
    topk = ids.shape[1]
    assert sums.shape == x.shape
    assert ids.shape == weights.shape == (rows, topk)
    out = torch.empty_like(x)
    _native.finish_experts(
        integers(sums, torch.int64),
        _table(windows),
        floats(x),
        rows,
        hidden,
        integers(ids, torch.int64),
        floats(weights),
        topk,
        out.data_ptr(),
    )
    return out


def _experts(
    x: Tensor, ids: Tensor, weights: Tensor, w1: Packed, w3: Packed, w2: Packed
) -> tuple[_Rows, _Banks]:
    """Check and return what both expert kernels take first: rows with their routing, and banks."""
    rows, hidden = x.shape
    topk = ids.shape[1]
    experts, inner, _ = w1.codes.shape
    assert w1.format is w3.format is w2.format is Format.MXFP4
    assert w1.codes.shape == w3.codes.shape == (experts, inner, hidden // 2)
    assert w2.codes.shape == (experts, hidden, inner // 2)
    assert ids.shape == weights.shape == (rows, topk)
    routing = integers(ids, torch.int64), floats(weights)
    banks = experts, inner, *_bank(w1), *_bank(w3), *_bank(w2)
    return (floats(x), rows, hidden, *routing, topk), banks


def _table(windows: Windows) -> int:
    assert windows.table.shape == (5,)
    return integers(windows.table, torch.int32)


def _bank(bank: Packed) -> tuple[int, int]:
    return integers(bank.codes, torch.uint8), integers(bank.scales, torch.uint8)
