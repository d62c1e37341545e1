"""The routed experts of one layer over packed banks: the definition every faster body must meet.

The operator is opaque to graph capture and shape propagation: its body may read the ids on the host
and decodes one expert at a time, so that no decoded copy of a bank ever exists.
"""

import torch
from torch import Tensor

from deskside.formats import mxfp4
from deskside.formats.packed import Format, Packed
from deskside.ops.integer_moe import Windows
from deskside.ops.linear import linear
from deskside.ops.route import swiglu

__all__ = ["moe"]


def moe(
    x: Tensor, ids: Tensor, weights: Tensor, w1: Packed, w3: Packed, w2: Packed, windows: Windows
) -> Tensor:
    """Run every row through its experts and add their weighted outputs in the order of `ids`.

    Args:
        x: [rows, hidden] float32.
        ids: [rows, topk] int64, -1 for an expert handled elsewhere.
        weights: [rows, topk] float32.
        w1: gate bank, MXFP4 [experts, intermediate, hidden].
        w3: up bank of the same shape.
        w2: down bank, MXFP4 [experts, hidden, intermediate].
        windows: of the layer; a body that adds floats reads only its limit.

    Returns:
        [rows, hidden] float32.
    """
    assert {bank.format for bank in (w1, w3, w2)} == {Format.MXFP4}
    banks = (w1.codes, w1.scales, w3.codes, w3.scales, w2.codes, w2.scales)
    result: Tensor = _moe(x, ids, weights, *banks, windows.limit)
    return result


@torch.library.custom_op("deskside::moe", mutates_args=())
def _moe(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_codes: Tensor,
    gate_scales: Tensor,
    up_codes: Tensor,
    up_scales: Tensor,
    down_codes: Tensor,
    down_scales: Tensor,
    limit: float,
) -> Tensor:
    parts = x.new_zeros(*ids.shape, x.shape[1])
    for expert in ids.unique().tolist():
        if expert < 0:
            continue
        rows, slots = torch.where(ids == expert)
        gate = linear(x[rows], mxfp4.decode(gate_codes[expert], gate_scales[expert]))
        up = linear(x[rows], mxfp4.decode(up_codes[expert], up_scales[expert]))
        hidden = swiglu(gate, up, limit) * weights[rows, slots].unsqueeze(1)
        down = mxfp4.decode(down_codes[expert], down_scales[expert])
        parts[rows, slots] = linear(hidden, down)
    total = parts[:, 0].clone()
    for slot in range(1, ids.shape[1]):
        total += parts[:, slot]
    return total


@_moe.register_fake
def _(x: Tensor, *_rest: object) -> Tensor:
    return torch.empty_like(x)
