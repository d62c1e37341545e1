"""The compiled CPU bodies of the operations: same signatures as the definitions in `ops`.

Owns the border to C++: asserts types and shapes, makes the results, passes addresses. A row's bits
never depend on other rows, on threads or on the instruction set (`tier`); they differ from those of
the plain bodies by rounding alone.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from deskside.formats.packed import Format, Packed
from deskside.kernels import _native
from deskside.kernels.experts import expert_sums, finish_experts, moe

__all__ = [
    "attend",
    "bodies",
    "expert_sums",
    "finish_experts",
    "force_tier",
    "hadamard",
    "hyper_head",
    "hyper_post",
    "hyper_pre",
    "index_scores",
    "linear",
    "moe",
    "pool",
    "read",
    "rms_norm",
    "rope",
    "route",
    "route_hashed",
    "select",
    "set_threads",
    "swiglu",
    "threads",
    "tier",
    "tiers",
]

_F32, _BF16, _FP8, _MXFP4 = range(4)
_MAX_LEAVES = 64
_MAX_STREAMS = 8

tiers: Callable[[], list[str]] = _native.tiers
"""Instruction-set tiers that run on this machine, widest first."""

tier: Callable[[], str] = _native.tier
"""The tier in use."""

force_tier: Callable[[str], None] = _native.force_tier
"""Use another of `tiers()`: slower, and equal bit for bit."""

set_threads: Callable[[int], None] = _native.set_threads
"""Set how many threads share a kernel, the caller among them; 1 until called."""

threads: Callable[[], int] = _native.threads
"""Threads that share a kernel."""


def read(tensor: Tensor) -> int:
    """Read a contiguous tensor once with all threads; for measuring, the sum means nothing."""
    assert tensor.is_contiguous()
    return _native.read(tensor.data_ptr(), tensor.nbytes)


def bodies() -> Mapping[str, Callable[..., Any]]:
    """Return the body of each operation that is compiled, by the operation's name."""
    return {
        "linear": linear,
        "hadamard": hadamard,
        "rms_norm": rms_norm,
        "rope": rope,
        "hyper_pre": hyper_pre,
        "hyper_post": hyper_post,
        "hyper_head": hyper_head,
        "attend": attend,
        "pool": pool,
        "index_scores": index_scores,
        "select": select,
        "route": route,
        "route_hashed": route_hashed,
        "swiglu": swiglu,
        "moe": moe,
        "expert_sums": expert_sums,
        "finish_experts": finish_experts,
    }


def _floats(tensor: Tensor) -> int:
    """Return the address of a contiguous float32 tensor."""
    assert tensor.dtype is torch.float32
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def _integers(tensor: Tensor, dtype: torch.dtype) -> int:
    assert tensor.dtype is dtype
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def linear(x: Tensor, weight: Tensor | Packed, leaves: int = 1) -> Tensor:
    """Multiply rows by a stored weight; see `ops.linear.linear`.

    `x` is [rows, in] float32 whose rows may lie apart; the weight is contiguous.
    """
    assert x.dtype is torch.float32
    rows, inner = x.shape
    x_stride, step = x.stride()
    assert step == 1
    if isinstance(weight, Tensor):
        assert weight.is_contiguous()
        kind = _F32 if weight.dtype is torch.float32 else _BF16
        assert kind == _F32 or weight.dtype is torch.bfloat16
        columns, width = weight.shape
        codes, scales = weight.data_ptr(), 0
        assert inner % leaves == 0
    else:
        kind, columns, width, codes, scales = _packed(weight)
        assert inner % leaves == 0
        leaf = inner // leaves
        assert leaves == 1 or leaf % 32 == 0 or (kind == _FP8 and 128 % leaf == 0)
    assert width == inner
    assert 1 <= leaves <= _MAX_LEAVES
    out = torch.empty((rows, columns))
    _native.linear(
        kind,
        x.data_ptr(),
        rows,
        inner,
        x_stride,
        codes,
        scales,
        columns,
        leaves,
        out.data_ptr(),
        columns,
    )
    return out


def _packed(weight: Packed) -> tuple[int, int, int, int, int]:
    codes, scales = weight.codes, weight.scales
    assert codes.is_contiguous()
    assert scales.is_contiguous()
    columns, width = codes.shape
    if weight.format is Format.MXFP4:
        return _MXFP4, columns, 2 * width, codes.data_ptr(), scales.data_ptr()
    return _FP8, columns, width, codes.data_ptr(), scales.data_ptr()


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Scale rows to unit root mean square; see `ops.linear.rms_norm`."""
    width = x.shape[-1]
    out = torch.empty_like(x)
    half_weight = weight is not None and weight.dtype is torch.bfloat16
    if weight is None:
        address = 0
    else:
        assert weight.shape == (width,)
        address = _integers(weight, torch.bfloat16) if half_weight else _floats(weight)
    rows = x.numel() // width
    _native.rms_norm(_floats(x), rows, width, address, half_weight, eps, out.data_ptr())
    return out


def rope(x: Tensor, table: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the last dimensions of every row by its position; see `ops.rotary.rope`."""
    rows, width = x.shape[0], x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    half = table.shape[2]
    assert table.shape == (rows, 2, half)
    assert 2 * half <= width
    out = torch.empty_like(x)
    _native.rope(_floats(x), rows, heads, width, _floats(table), half, inverse, out.data_ptr())
    return out


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """Clamped gated unit; see `ops.route.swiglu`."""
    assert gate.shape == up.shape
    out = torch.empty_like(gate)
    _native.swiglu(_floats(gate), _floats(up), gate.numel(), limit, out.data_ptr())
    return out


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
        _floats(streams),
        rows,
        count,
        width,
        _floats(fn),
        _floats(base),
        _floats(scale),
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
        _floats(streams),
        rows,
        count,
        width,
        _floats(fn),
        _floats(base),
        _floats(scale),
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
        _floats(output),
        _floats(streams),
        rows,
        count,
        width,
        _floats(post),
        _floats(mixing),
        out.data_ptr(),
    )
    return out


def attend(
    q: Tensor,
    window_keys: Tensor,
    window_index: Tensor,
    entry_keys: Tensor,
    entry_index: Tensor,
    sink: Tensor,
    scale: float,
) -> Tensor:
    """Attend every row to its own keys; see `ops.attend.attend`. Indices are not checked."""
    rows, heads, width = q.shape
    assert window_keys.shape[1] == entry_keys.shape[1] == width
    assert window_index.shape[0] == entry_index.shape[0] == rows
    assert sink.shape[0] == heads
    out = torch.empty_like(q)
    _native.attend(
        _floats(q),
        rows,
        heads,
        width,
        _floats(window_keys),
        _integers(window_index, torch.int32),
        window_index.shape[1],
        _floats(entry_keys),
        _integers(entry_index, torch.int32),
        entry_index.shape[1],
        _floats(sink),
        scale,
        out.data_ptr(),
    )
    return out


def index_scores(
    q: Tensor, weights: Tensor, keys: Tensor, first: Tensor, visible: Tensor, entries: int
) -> Tensor:
    """Score the entries a row can see; see `ops.index.index_scores`."""
    rows, heads, width = q.shape
    assert weights.shape == (rows, heads)
    assert keys.shape[1] == width
    assert first.shape[0] == visible.shape[0] == rows
    out = torch.empty((rows, entries))
    _native.index_scores(
        _floats(q),
        rows,
        heads,
        width,
        _floats(weights),
        _floats(keys),
        _integers(first, torch.int64),
        _integers(visible, torch.int64),
        entries,
        out.data_ptr(),
    )
    return out


def pool(values: Tensor, scores: Tensor, absent: Tensor) -> Tensor:
    """Pool the rows of each compressed entry; see `ops.attend.pool`.

    Values and scores may be two parts of the columns of one tensor.
    """
    entries, length, width = values.shape
    assert values.dtype is scores.dtype is torch.float32
    assert scores.shape == values.shape
    assert absent.shape == (entries, length)
    if values.stride() != scores.stride():
        values, scores = values.contiguous(), scores.contiguous()
    entry_stride, row_stride, step = values.stride()
    assert step == 1
    out = torch.empty((entries, width))
    _native.pool(
        values.data_ptr(),
        scores.data_ptr(),
        _integers(absent, torch.bool),
        entries,
        length,
        width,
        entry_stride,
        row_stride,
        out.data_ptr(),
    )
    return out


def select(scores: Tensor, count: int) -> Tensor:
    """Return the best columns of every row, ascending; see `ops.index.select`."""
    rows, columns = scores.shape
    count = min(count, columns)
    out = torch.empty((rows, count), dtype=torch.int64)
    _native.select(_floats(scores), rows, columns, count, out.data_ptr())
    return out


def route(logits: Tensor, bias: Tensor, topk: int, scale: float) -> tuple[Tensor, Tensor]:
    """Choose experts by biased score; see `ops.route.route`."""
    rows, experts = logits.shape
    assert bias.shape == (experts,)
    assert 1 <= topk <= experts
    ids = torch.empty((rows, topk), dtype=torch.int64)
    weights = torch.empty((rows, topk))
    _native.route(
        _floats(logits),
        rows,
        experts,
        _floats(bias),
        topk,
        scale,
        ids.data_ptr(),
        weights.data_ptr(),
    )
    return ids, weights


def route_hashed(logits: Tensor, ids: Tensor, scale: float) -> Tensor:
    """Weigh experts that a table chose; see `ops.route.route_hashed`.

    Raises:
        IndexError: an id names no expert.
    """
    rows, experts = logits.shape
    topk = ids.shape[1]
    assert ids.shape[0] == rows
    weights = torch.empty((rows, topk))
    _native.route(
        _floats(logits),
        rows,
        experts,
        0,
        topk,
        scale,
        _integers(ids, torch.int64),
        weights.data_ptr(),
    )
    return weights


def hadamard(x: Tensor) -> Tensor:
    """Apply the orthonormal Hadamard transform to the last dimension; see `ops.index.hadamard`."""
    width = x.shape[-1]
    assert width & (width - 1) == 0
    out = torch.empty_like(x)
    _native.hadamard(_floats(x), x.numel() // width, width, width**-0.5, out.data_ptr())
    return out
