"""The compiled hyper-connections."""

import torch
from torch import Tensor

from deskside.kernels import _native
from deskside.kernels.addresses import floats

__all__ = ["hyper_head", "hyper_post", "hyper_pre"]

_MAX_STREAMS = 8


def hyper_pre(
    streams: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    iterations: int,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mix the residual streams into a sub-layer's input; see `ops.hyper.hyper_pre`."""
    rows, count, width = streams.shape
    assert count <= _MAX_STREAMS
    assert fn.shape == (count * (2 + count), count * width)
    assert base.shape[0] == fn.shape[0]
    assert scale.shape[0] == 3
    out = torch.empty((rows, width))
    post = torch.empty((rows, count))
    mixing = torch.empty((rows, count, count))
    _native.hyper_pre(
        floats(streams),
        rows,
        count,
        width,
        floats(fn),
        floats(base),
        floats(scale),
        iterations,
        eps,
        norm_eps,
        out.data_ptr(),
        post.data_ptr(),
        mixing.data_ptr(),
    )
    return out, post, mixing


def hyper_head(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, eps: float, norm_eps: float
) -> Tensor:
    """Collapse the streams into one; see `ops.hyper.hyper_head`."""
    rows, count, width = streams.shape
    assert count <= _MAX_STREAMS
    assert fn.shape == (count, count * width)
    assert base.shape[0] == count
    out = torch.empty((rows, width))
    _native.hyper_head(
        floats(streams),
        rows,
        count,
        width,
        floats(fn),
        floats(base),
        floats(scale),
        eps,
        norm_eps,
        out.data_ptr(),
    )
    return out


def hyper_post(output: Tensor, streams: Tensor, post: Tensor, mixing: Tensor) -> Tensor:
    """Write a sub-layer's output back into the streams; see `ops.hyper.hyper_post`."""
    rows, count, width = streams.shape
    assert count <= _MAX_STREAMS
    assert output.shape == (rows, width)
    assert post.shape == (rows, count)
    assert mixing.shape == (rows, count, count)
    out = torch.empty_like(streams)
    _native.hyper_post(
        floats(output),
        floats(streams),
        rows,
        count,
        width,
        floats(post),
        floats(mixing),
        out.data_ptr(),
    )
    return out
