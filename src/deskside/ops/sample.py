"""From logits to the law of a token: temperature, top-k and top-p, and the greedy choice.

Every row is treated alone, in float64 where sums are long, so that a draw depends on nothing else.
Ties go to the lower token.
"""

import torch
from torch import Tensor

__all__ = ["best", "greedy", "target_distribution"]


def greedy(logits: Tensor) -> Tensor:
    """Return the lowest token of the highest logit: [rows, vocab] -> [rows] int64."""
    return logits.argmax(1)  # of equals the first, as torch documents


def best(logits: Tensor) -> Tensor:
    """Return the greedy choice as `greedy` does, but -1 for a row that is not all numbers.

    A row with a NaN or an infinity has no choice to be trusted.
    """
    return greedy(logits).masked_fill(~logits.isfinite().all(1), -1)


def target_distribution(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Return the distribution that a token is drawn from.

    Args:
        logits: [vocab] float32.
        temperature: above 0.
        top_k: keep this many of the likeliest tokens, 0 keeps all.
        top_p: then keep the shortest prefix of them that holds this mass.

    Returns:
        [vocab] float64, sums to 1 but for rounding.
    """
    scaled = logits.double() / temperature
    if top_k == 0 and top_p >= 1:
        return torch.softmax(scaled, 0)
    ranked, tokens = torch.sort(scaled, descending=True, stable=True)
    if top_k:
        ranked, tokens = ranked[:top_k], tokens[:top_k]
    mass = torch.softmax(ranked, 0)
    before = mass.cumsum(0) - mass
    kept = torch.where(before < top_p, mass, 0)
    return torch.zeros_like(scaled).index_copy_(0, tokens, kept / kept.sum())
