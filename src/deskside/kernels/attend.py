"""The compiled attention over lists of keys, and the pooling of compressed entries."""

import torch
from torch import Tensor

from deskside.kernels import _native
from deskside.kernels.addresses import floats, integers

__all__ = ["attend", "pool"]


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
        floats(q),
        rows,
        heads,
        width,
        floats(window_keys),
        integers(window_index, torch.int32),
        window_index.shape[1],
        floats(entry_keys),
        integers(entry_index, torch.int32),
        entry_index.shape[1],
        floats(sink),
        scale,
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
        integers(absent, torch.bool),
        entries,
        length,
        width,
        entry_stride,
        row_stride,
        out.data_ptr(),
    )
    return out
