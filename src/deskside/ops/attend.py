"""Attention of rows with one shared key/value head, a window, compressed entries and a sink.

Every row brings the list of its own keys; the order of the list alone decides the order of the
sums. Keys are taken in tiles of 128 counted from the start of a list, so absent keys at its end
add exact zeros and never change a bit.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from deskside.ops.tiles import HEAD_TILE, KEY_TILE, rowwise

__all__ = ["attend", "pool"]


@rowwise("q", "window_index", "entry_index")
def attend(
    q: Tensor,
    window_keys: Tensor,
    window_index: Tensor,
    entry_keys: Tensor,
    entry_index: Tensor,
    sink: Tensor,
    scale: float,
) -> Tensor:
    """Attend every row to its own keys; a key is its own value.

    Args:
        q: [rows, heads, width] float32.
        window_keys: [n, width] float32.
        window_index: [rows, w] int32 into `window_keys`, -1 for an absent key.
        entry_keys: [m, width] float32.
        entry_index: [rows, e] int32 into `entry_keys`, -1 for an absent key; e may be 0.
        sink: [heads] float32, joins the denominator with exp(sink) and brings no value.
        scale: of the logits.

    Returns:
        [rows, heads, width] float32.
    """
    heads = q.shape[1]
    short = -heads % HEAD_TILE
    parts = pad(q, (0, 0, 0, short)).split(HEAD_TILE, dim=1)
    sinks = pad(sink, (0, short)).split(HEAD_TILE)
    tiles = _tiles(window_keys, window_index) + _tiles(entry_keys, entry_index)
    done = [_attended(part, tiles, own, scale) for part, own in zip(parts, sinks, strict=True)]
    return torch.cat(done, dim=1)[:, :heads]


def _attended(q: Tensor, tiles: list[tuple[Tensor, Tensor]], sink: Tensor, scale: float) -> Tensor:
    """Attend a tile of heads [rows, 8, width] to tiles of keys, each with what is absent."""
    logits = []
    for keys, absent in tiles:
        scores = torch.bmm(q, keys.transpose(1, 2)) * scale
        logits.append(scores.masked_fill(absent.unsqueeze(1), -torch.inf))
    top = sink.unsqueeze(0)
    for scores in logits:
        top = torch.maximum(top, scores.amax(-1))
    total = torch.exp(sink - top)
    output = torch.zeros_like(q)
    for (keys, _), scores in zip(tiles, logits, strict=True):
        weights = torch.exp(scores - top.unsqueeze(2))
        total = total + weights.sum(-1)
        output = output + torch.bmm(weights, keys)
    return output / total.unsqueeze(2)


def _tiles(keys: Tensor, index: Tensor) -> list[tuple[Tensor, Tensor]]:
    short = -index.shape[1] % KEY_TILE
    index = pad(index, (0, short), value=-1)
    starts = range(0, index.shape[1] if index.numel() else 0, KEY_TILE)
    parts = [index.narrow(1, start, KEY_TILE) for start in starts]  # split fakes no empty tensor
    return [(keys[part.clamp(min=0)], part < 0) for part in parts]


@rowwise("values", "scores", "absent")
def pool(values: Tensor, scores: Tensor, absent: Tensor) -> Tensor:
    """Pool the rows of each compressed entry, channel by channel, by a softmax of their scores.

    Args:
        values: [entries, rows, width] float32.
        scores: [entries, rows, width] float32.
        absent: [entries, rows] bool, rows before the first token.

    Returns:
        [entries, width] float32.
    """
    scores = scores.masked_fill(absent.unsqueeze(2), -torch.inf)
    weights = torch.softmax(scores, dim=1)
    return (weights * values.masked_fill(absent.unsqueeze(2), 0)).sum(1)
