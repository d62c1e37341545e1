"""Routing of rows to experts, and the gated unit inside each expert."""

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from deskside.ops.tiles import rowwise

__all__ = ["route", "route_hashed", "swiglu"]


@rowwise("logits")
def route(logits: Tensor, bias: Tensor, topk: int, scale: float) -> tuple[Tensor, Tensor]:
    """Choose experts by biased score and weigh them by unbiased score.

    Args:
        logits: [rows, experts] float32.
        bias: [experts] float32, steers the choice alone.
        topk: experts a row takes; ties go to the lower expert.
        scale: of the normalised weights.

    Returns:
        ids [rows, topk] int64, best first, and weights [rows, topk] float32.
    """
    scores = softplus(logits).sqrt()
    order = torch.sort(scores + bias, dim=1, descending=True, stable=True).indices
    ids = order[:, :topk].contiguous()
    return ids, _weights(scores.gather(1, ids), scale)


@rowwise("logits", "ids")
def route_hashed(logits: Tensor, ids: Tensor, scale: float) -> Tensor:
    """Weigh experts that a table chose: logits [rows, experts], ids [rows, topk] -> weights."""
    return _weights(softplus(logits).sqrt().gather(1, ids), scale)


def _weights(chosen: Tensor, scale: float) -> Tensor:
    total = chosen[:, 0:1]
    for k in range(1, chosen.shape[1]):
        total = total + chosen[:, k : k + 1]
    return chosen / total * scale


@rowwise("gate", "up")
def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """Clamped gated unit: silu(min(gate, limit)) * clamp(up, -limit, limit), [rows, width]."""
    return silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
