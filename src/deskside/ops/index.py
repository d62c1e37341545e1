"""The lightning indexer's arithmetic: scores of compressed entries and the choice of the best.

Scores are float32; ties go to the lower entry; chosen entries are returned in ascending order, so
that the attention that follows adds them in an order that depends on nothing else.
"""

import torch
from torch import Tensor

from deskside.ops.tiles import KEY_TILE, rowwise

__all__ = ["hadamard", "index_scores", "select"]


@rowwise("q", "weights", "first", "visible")
def index_scores(
    q: Tensor, weights: Tensor, keys: Tensor, first: Tensor, visible: Tensor, entries: int
) -> Tensor:
    """Score the entries a row can see: sum over heads of weight * relu(q . key).

    Args:
        q: [rows, heads, width] float32.
        weights: [rows, heads] float32, may be negative.
        keys: [n, width] float32; entry e of a row stands at first + e.
        first: [rows] int64.
        visible: [rows] int64, entries the row can see.
        entries: columns of the result, at least the largest of `visible`.

    Returns:
        [rows, entries] float32, -inf beyond `visible`.
    """
    columns = []
    for start in range(0, entries, KEY_TILE):
        entry = torch.arange(start, start + KEY_TILE).unsqueeze(0)
        hidden = entry >= visible.unsqueeze(1)
        rows = (first.unsqueeze(1) + entry).masked_fill(hidden, 0)
        dots = torch.bmm(q, keys[rows].transpose(1, 2)).relu()
        scores = torch.bmm(weights.unsqueeze(1), dots).squeeze(1)
        columns.append(scores.masked_fill(hidden, -torch.inf))
    return torch.cat(columns, dim=1)[:, :entries]


def select(scores: Tensor, count: int) -> Tensor:
    """Return the `count` best columns of every row, ascending, -1 for those at -inf.

    Args:
        scores: [rows, columns] float32.
        count: how many to keep; all when there are fewer.

    Returns:
        [rows, min(count, columns)] int64, the -1 last.
    """
    count = min(count, scores.shape[1])
    best, columns = torch.sort(scores, dim=1, descending=True, stable=True)
    columns = columns[:, :count].masked_fill(best[:, :count] == -torch.inf, scores.shape[1])
    ordered = torch.sort(columns, dim=1).values
    return ordered.masked_fill(ordered == scores.shape[1], -1)


def hadamard(x: Tensor) -> Tensor:
    """Apply the orthonormal Sylvester-Hadamard transform to the last dimension (a power of two).

    Butterflies of exact order: elementwise sums and differences only, so rows cannot interact.
    """
    width = x.shape[-1]
    step = 1
    while step < width:
        pairs = x.unflatten(-1, (width // (2 * step), 2, step))
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        x = torch.stack((low + high, low - high), dim=-2).flatten(-3)
        step *= 2
    return x.mul(width**-0.5)
