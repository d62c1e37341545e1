"""Hyper-connections: how a sub-layer reads from and writes to the parallel residual streams.

`hyper_pre` mixes the streams into the sub-layer's input and prepares the way back, `hyper_post`
brings its output back, `hyper_head` collapses the streams before the output norm.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear as dense

from deskside.ops.tiles import rowwise

__all__ = ["hyper_head", "hyper_post", "hyper_pre"]


def _projected(streams: Tensor, fn: Tensor, norm_eps: float) -> Tensor:
    flat = streams.flatten(1)
    return dense(flat, fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)


def _mixed(weights: Tensor, streams: Tensor) -> Tensor:
    mixed = weights[:, 0:1] * streams[:, 0]
    for s in range(1, streams.shape[1]):
        mixed = mixed + weights[:, s : s + 1] * streams[:, s]
    return mixed


def _balanced(mixing: Tensor, iterations: int, eps: float) -> Tensor:
    mixing = torch.softmax(mixing, dim=-1) + eps
    mixing = mixing / (mixing.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mixing = mixing / (mixing.sum(-1, keepdim=True) + eps)
        mixing = mixing / (mixing.sum(-2, keepdim=True) + eps)
    return mixing


@rowwise("streams")
def hyper_pre(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    iterations: int,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mix the residual streams into a sub-layer's input.

    Args:
        streams: [rows, S, width] float32.
        fn: [S * (2 + S), S * width] float32.
        base: [S * (2 + S)] float32.
        scale: [3] float32, for the input, output and mixing parts.
        iterations: Sinkhorn normalisations of the mixing matrix, columns last.
        eps: keeps the gates and the normalisations away from zero.
        norm_eps: of the projection's root mean square.

    Returns:
        input [rows, width], output gates [rows, S], mixing matrix [rows, S, S].
    """
    count = streams.shape[1]
    projected = _projected(streams, fn, norm_eps)
    pre = torch.sigmoid(projected[:, :count] * scale[0] + base[:count]) + eps
    post = 2 * torch.sigmoid(projected[:, count : 2 * count] * scale[1] + base[count : 2 * count])
    mixing = projected[:, 2 * count :] * scale[2] + base[2 * count :]
    mixing = _balanced(mixing.unflatten(1, (count, count)), iterations, eps)
    return _mixed(pre, streams), post, mixing


@rowwise("output", "streams", "post", "mixing")
def hyper_post(output: Tensor, streams: Tensor, post: Tensor, mixing: Tensor) -> Tensor:
    """Write a sub-layer's output back: stream k = post_k * output + sum_j mixing[j, k] * stream j.

    Args:
        output: [rows, width] float32.
        streams: [rows, S, width] float32, as they were before the sub-layer.
        post: [rows, S] float32.
        mixing: [rows, S, S] float32.

    Returns:
        [rows, S, width] float32.
    """
    written = post.unsqueeze(2) * output.unsqueeze(1)
    for j in range(streams.shape[1]):
        written = written + mixing[:, j].unsqueeze(2) * streams[:, j].unsqueeze(1)
    return written


@rowwise("streams")
def hyper_head(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, eps: float, norm_eps: float
) -> Tensor:
    """Collapse the streams into one: [rows, S, width] -> [rows, width] float32.

    `fn` is [S, S * width], `base` [S], `scale` [1]. No Sinkhorn here.
    """
    gates = torch.sigmoid(_projected(streams, fn, norm_eps) * scale + base) + eps
    return _mixed(gates, streams)
