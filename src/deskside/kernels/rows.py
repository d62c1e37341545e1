"""Compiled stored-row formats: byte for byte those of `formats.rows`, for cached vectors.

A cache that is told to `compiled(format)` keeps the same bytes and reads the same floats.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.formats.rows import Fp8Rows, Mxfp4Rows, RowFormat
from deskside.kernels import _native

__all__ = ["CompiledFp8Rows", "CompiledMxfp4Rows", "compiled"]


@dataclass(frozen=True, slots=True)
class CompiledFp8Rows:
    """`Fp8Rows` with compiled bodies."""

    plain: Fp8Rows

    @property
    def width(self) -> int:
        """Bytes of a stored row."""
        return self.plain.width

    @property
    def dtype(self) -> torch.dtype:
        """Element type of a stored row."""
        return torch.uint8

    def encode(self, rows: Tensor) -> Tensor:
        """Store float32 rows [n, nope + rope] as bytes."""
        dim = self.plain.nope + self.plain.rope
        out = torch.empty((rows.shape[0], self.plain.width), dtype=torch.uint8)
        floats = _floats(rows, dim)
        _native.encode_fp8_rows(floats, out.data_ptr(), rows.shape[0], dim, self.plain.nope)
        return out

    def decode(self, stored: Tensor) -> Tensor:
        """Read bytes back as float32 rows [n, nope + rope]."""
        dim = self.plain.nope + self.plain.rope
        out = torch.empty((stored.shape[0], dim))
        codes = _bytes(stored, self.plain.width)
        _native.decode_fp8_rows(out.data_ptr(), codes, stored.shape[0], dim, self.plain.nope)
        return out


@dataclass(frozen=True, slots=True)
class CompiledMxfp4Rows:
    """`Mxfp4Rows` with compiled bodies."""

    plain: Mxfp4Rows

    @property
    def width(self) -> int:
        """Bytes of a stored row."""
        return self.plain.width

    @property
    def dtype(self) -> torch.dtype:
        """Element type of a stored row."""
        return torch.uint8

    def encode(self, rows: Tensor) -> Tensor:
        """Store float32 rows [n, dim] as bytes."""
        dim = self.plain.dim
        out = torch.empty((rows.shape[0], self.plain.width), dtype=torch.uint8)
        _native.encode_mxfp4_rows(_floats(rows, dim), out.data_ptr(), rows.shape[0], dim, 0)
        return out

    def decode(self, stored: Tensor) -> Tensor:
        """Read bytes back as float32 rows [n, dim]."""
        dim = self.plain.dim
        out = torch.empty((stored.shape[0], dim))
        codes = _bytes(stored, self.plain.width)
        _native.decode_mxfp4_rows(out.data_ptr(), codes, stored.shape[0], dim, 0)
        return out


def compiled(plain: RowFormat) -> RowFormat:
    """Return the compiled form of a row format, or the format itself where there is none."""
    if isinstance(plain, Fp8Rows):
        return CompiledFp8Rows(plain)
    if isinstance(plain, Mxfp4Rows):
        return CompiledMxfp4Rows(plain)
    return plain


def _floats(rows: Tensor, dim: int) -> int:
    assert rows.dtype is torch.float32
    assert rows.is_contiguous()
    assert rows.shape[1] == dim
    return rows.data_ptr()


def _bytes(stored: Tensor, width: int) -> int:
    assert stored.dtype is torch.uint8
    assert stored.is_contiguous()
    assert stored.shape[1] == width
    return stored.data_ptr()
