"""A draw written down once more, the plain way, for the compared one to be judged by."""

import torch
from torch import Tensor


def draw(distribution: Tensor, uniform: float) -> Tensor:
    """Return the token (scalar int64) where the cumulated mass passes `uniform` in [0, 1)."""
    mass = distribution.cumsum(0)
    last = distribution.nonzero()[-1, 0]
    return torch.minimum(torch.searchsorted(mass, uniform * mass[-1], right=True), last)
