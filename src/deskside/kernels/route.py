"""The compiled choice of experts, and the gated unit."""

import torch
from torch import Tensor

from deskside.kernels import _native
from deskside.kernels.addresses import floats, integers

__all__ = ["route", "route_hashed", "swiglu"]


def route(logits: Tensor, bias: Tensor, topk: int, scale: float) -> tuple[Tensor, Tensor]:
    """Choose experts by biased score; see `ops.route.route`."""
    rows, experts = logits.shape
    assert bias.shape == (experts,)
    assert 1 <= topk <= experts
    ids = torch.empty((rows, topk), dtype=torch.int64)
    weights = torch.empty((rows, topk))
    _native.route(
        floats(logits),
        rows,
        experts,
        floats(bias),
        topk,
        scale,
        ids.data_ptr(),
        weights.data_ptr(),
    )
    return ids, weights


def route_hashed(logits: Tensor, ids: Tensor, scale: float) -> Tensor:
    """Weigh experts that a table chose; see `ops.route.route_hashed`.

    Raises:
        CheckpointError: an id names no expert.
    """
    rows, experts = logits.shape
    topk = ids.shape[1]
    assert ids.shape[0] == rows
    weights = torch.empty((rows, topk))
    _native.route(
        floats(logits),
        rows,
        experts,
        0,
        topk,
        scale,
        integers(ids, torch.int64),
        weights.data_ptr(),
    )
    return weights


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """Clamped gated unit; see `ops.route.swiglu`."""
    assert gate.shape == up.shape
    out = torch.empty_like(gate)
    _native.swiglu(floats(gate), floats(up), gate.numel(), limit, out.data_ptr())
    return out
