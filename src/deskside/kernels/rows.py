"""Compiled stored-row formats: byte for byte those of `formats.rows`, for cached vectors.

A cache that is told to `compiled(format)` keeps the same bytes and reads the same floats.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.formats.rows import Float32Rows, Fp8Rows, Mxfp4Rows, RowFormat
from deskside.kernels import _native
from deskside.kernels.addresses import integers

__all__ = ["CompiledFloat32Rows", "CompiledFp8Rows", "CompiledMxfp4Rows", "compiled"]


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

    def read(self, blocks: Tensor, numbers: Tensor, behind: Tensor) -> Tensor:
        """Read blocks [blocks, length, width] by number, then rows behind them."""
        places, rows = _blocks(blocks, numbers, behind, self.plain.width)
        dim = self.plain.nope + self.plain.rope
        out = torch.empty(rows, dim)
        _native.read_fp8_blocks(out.data_ptr(), *places, dim, self.plain.nope)
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

    def read(self, blocks: Tensor, numbers: Tensor, behind: Tensor) -> Tensor:
        """Read blocks [blocks, length, width] by number, then rows behind them."""
        places, rows = _blocks(blocks, numbers, behind, self.plain.width)
        out = torch.empty(rows, self.plain.dim)
        _native.read_mxfp4_blocks(out.data_ptr(), *places, self.plain.dim, 0)
        return out


@dataclass(frozen=True, slots=True)
class CompiledFloat32Rows:
    """`Float32Rows` with a compiled body where rows are copied together."""

    plain: Float32Rows

    @property
    def width(self) -> int:
        """Elements of a stored row."""
        return self.plain.width

    @property
    def dtype(self) -> torch.dtype:
        """Element type of a stored row."""
        return torch.float32

    def encode(self, rows: Tensor) -> Tensor:
        """Return the rows themselves."""
        return rows

    def decode(self, stored: Tensor) -> Tensor:
        """Return the rows themselves."""
        return stored

    def read(self, blocks: Tensor, numbers: Tensor, behind: Tensor) -> Tensor:
        """Copy blocks [blocks, length, width] by number, then rows behind them."""
        width = self.plain.width
        assert blocks.dtype is behind.dtype is torch.float32
        places, rows = _blocks(blocks, numbers, behind, width)
        out = torch.empty(rows, width)
        _native.read_blocks(out.data_ptr(), *places)
        return out


def compiled(plain: RowFormat) -> RowFormat:
    """Return the compiled form of a row format."""
    if isinstance(plain, Fp8Rows):
        return CompiledFp8Rows(plain)
    if isinstance(plain, Mxfp4Rows):
        return CompiledMxfp4Rows(plain)
    assert isinstance(plain, Float32Rows)
    return CompiledFloat32Rows(plain)


def _blocks(
    blocks: Tensor, numbers: Tensor, behind: Tensor, width: int
) -> tuple[tuple[int, int, int, int, int, int, int], int]:
    """Check and return what reads of blocks take after the place of their result, and its rows."""
    _, length, row = blocks.shape
    assert row == behind.shape[1] == width
    assert blocks.dtype is behind.dtype
    assert blocks.is_contiguous()
    assert behind.is_contiguous()
    count, rows = numbers.shape[0], behind.shape[0]
    size = width * blocks.element_size()
    ids = integers(numbers, torch.int64)
    places = (blocks.data_ptr(), ids, count, length, size, behind.data_ptr(), rows)
    return places, count * length + rows


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
