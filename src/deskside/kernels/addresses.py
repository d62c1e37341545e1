"""Tensors as addresses for C++, with the types and layouts that compiled bodies rely on."""

import torch
from torch import Tensor

__all__ = ["floats", "integers"]


def floats(tensor: Tensor) -> int:
    """Return the address of a contiguous float32 tensor."""
    assert tensor.dtype is torch.float32
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def integers(tensor: Tensor, dtype: torch.dtype) -> int:
    """Return the address of a contiguous tensor of this type."""
    assert tensor.dtype is dtype
    assert tensor.is_contiguous()
    return tensor.data_ptr()
