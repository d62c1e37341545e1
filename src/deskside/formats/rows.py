"""How one cached vector is stored: plain float32, FP8 with rotated BF16 tail, or MXFP4 index keys.

A format maps float32 rows to stored rows and back. Every step is exact or one correct rounding of a
single element, so a row's stored bits depend on that row alone.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from deskside.formats import e8m0, mxfp4

__all__ = ["Float32Rows", "Fp8Rows", "Mxfp4Rows", "RowFormat", "joined"]

FP8_BLOCK = 64
FP8_LARGEST = 448.0
FP8_LEAST = 1e-4
MXFP4_LEAST = 6 * 2.0**-126


class RowFormat(Protocol):
    """The stored form of rows of one width."""

    @property
    def width(self) -> int:
        """Elements of a stored row."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Element type of a stored row."""
        ...

    def encode(self, rows: Tensor) -> Tensor:
        """Store float32 rows [n, dim] as [n, width]."""
        ...

    def decode(self, stored: Tensor) -> Tensor:
        """Read stored rows [n, width] back as float32 [n, dim]."""
        ...

    def read(self, blocks: Tensor, numbers: Tensor, behind: Tensor) -> Tensor:
        """Read blocks of stored rows by their numbers, then further rows behind them.

        Args:
            blocks: [blocks, length, width] as stored.
            numbers: [n] int64 of the blocks to read.
            behind: [rows, width] as stored; may be none.

        Returns:
            [n * length + rows, dim] float32.
        """
        ...


def joined(blocks: Tensor, numbers: Tensor, behind: Tensor) -> Tensor:
    """Return the stored rows [n * length + rows, width] that `RowFormat.read` decodes."""
    return torch.cat((blocks.index_select(0, numbers).flatten(0, 1), behind))


@dataclass(frozen=True, slots=True)
class Float32Rows:
    """Rows kept as they are."""

    dim: int

    @property
    def width(self) -> int:
        """Elements of a stored row."""
        return self.dim

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
        """Read blocks [blocks, length, width] by number, then rows behind them."""
        return self.decode(joined(blocks, numbers, behind))


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """E4M3 codes in blocks of 64 with E8M0 scales, then the rotated dimensions in BF16.

    Layout of a stored row: `nope` code bytes, one scale byte per 64, padding to a multiple of 8,
    2 * `rope` bytes of BF16. 584 bytes for 448 + 64 dimensions.
    """

    nope: int
    rope: int

    @property
    def width(self) -> int:
        """Bytes of a stored row."""
        return self._tail + 2 * self.rope

    @property
    def dtype(self) -> torch.dtype:
        """Element type of a stored row."""
        return torch.uint8

    @property
    def _tail(self) -> int:
        return -(-(self.nope + self.nope // FP8_BLOCK) // 8) * 8

    def encode(self, rows: Tensor) -> Tensor:
        """Store float32 rows [n, nope + rope] as bytes, scales rounded up to a power of two."""
        blocks = rows[:, : self.nope].unflatten(1, (-1, FP8_BLOCK))
        largest = blocks.abs().amax(-1).clamp(min=FP8_LEAST)
        exponents = e8m0.exponent_for(largest, FP8_LARGEST)
        scaled = blocks * e8m0.power(-exponents).unsqueeze(-1)
        codes = scaled.to(torch.float8_e4m3fn).view(torch.uint8).flatten(1)
        head = torch.cat((codes, e8m0.to_bytes(exponents)), dim=1)
        tail = rows[:, self.nope :].to(torch.bfloat16).contiguous().view(torch.uint8)
        return torch.cat((pad(head, (0, self._tail - head.shape[1])), tail), dim=1)

    def decode(self, stored: Tensor) -> Tensor:
        """Read bytes back as float32 rows [n, nope + rope]."""
        codes = stored[:, : self.nope].contiguous().view(torch.float8_e4m3fn).float()
        scales = e8m0.to_float(stored[:, self.nope : self.nope + self.nope // FP8_BLOCK])
        blocks = codes.unflatten(1, (-1, FP8_BLOCK)) * scales.unsqueeze(-1)
        tail = stored[:, self._tail :].contiguous().view(torch.bfloat16).float()
        return torch.cat((blocks.flatten(1), tail), dim=1)

    def read(self, blocks: Tensor, numbers: Tensor, behind: Tensor) -> Tensor:
        """Read blocks [blocks, length, width] by number, then rows behind them."""
        return self.decode(joined(blocks, numbers, behind))


@dataclass(frozen=True, slots=True)
class Mxfp4Rows:
    """E2M1 codes, two a byte, with one E8M0 scale per 32: the stored form of index keys."""

    dim: int

    @property
    def width(self) -> int:
        """Bytes of a stored row."""
        return self.dim // 2 + self.dim // mxfp4.BLOCK

    @property
    def dtype(self) -> torch.dtype:
        """Element type of a stored row."""
        return torch.uint8

    def encode(self, rows: Tensor) -> Tensor:
        """Store float32 rows [n, dim] as bytes, scales rounded up to a power of two."""
        largest = rows.unflatten(1, (-1, mxfp4.BLOCK)).abs().amax(-1).clamp(min=MXFP4_LEAST)
        exponents = e8m0.exponent_for(largest, mxfp4.LARGEST)
        return torch.cat((mxfp4.encode_at(rows, exponents), e8m0.to_bytes(exponents)), dim=1)

    def decode(self, stored: Tensor) -> Tensor:
        """Read bytes back as float32 rows [n, dim]."""
        half = self.dim // 2
        return mxfp4.decode(stored[:, :half].contiguous(), stored[:, half:].contiguous())

    def read(self, blocks: Tensor, numbers: Tensor, behind: Tensor) -> Tensor:
        """Read blocks [blocks, length, width] by number, then rows behind them."""
        return self.decode(joined(blocks, numbers, behind))
