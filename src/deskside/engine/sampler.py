"""Draws the token that follows a span, from its logits and the request's own uniform number."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from deskside.core import Request
from deskside.ops.sample import draw, greedy, target_distribution
from deskside.uniforms import Purpose, uniform

__all__ = ["Draw", "sample"]


@dataclass(frozen=True, slots=True)
class Draw:
    """One row to draw from: its request, the request's seed and the position it decides."""

    request: Request
    seed: int
    position: int


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Draw one token for each row of logits [rows, vocab]."""
    if all(one.request.params.temperature == 0 for one in draws):
        chosen: list[int] = greedy(logits).tolist()
        return chosen
    return [_one(row, one) for row, one in zip(logits, draws, strict=True)]


def _one(logits: Tensor, one: Draw) -> int:
    params = one.request.params
    if params.temperature == 0:
        return int(greedy(logits.unsqueeze(0))[0])
    distribution = target_distribution(logits, params.temperature, params.top_k, params.top_p)
    number = uniform(one.seed, one.request.choice, one.position, Purpose.TARGET)
    return int(draw(distribution, number))
