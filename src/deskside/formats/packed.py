"""A quantized matrix as one object: codes and scales, which are cut together or not at all.

Owns the two formats' geometry and the rule that a shard has its own storage. Knows no names of
tensors beyond the one it is told for a message.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import torch
from torch import Tensor

from deskside.errors import CheckpointError
from deskside.formats import fp8, mxfp4
from deskside.layout.cuts import check_cut

__all__ = ["Axis", "Format", "Packed"]

Axis = Literal["rows", "columns"]


class Format(StrEnum):
    """How a matrix is stored: MXFP4 (routed experts) or FP8 in 128 x 128 blocks (the rest)."""

    MXFP4 = "mxfp4"
    FP8 = "fp8"


_PER_BYTE = {Format.MXFP4: 2, Format.FP8: 1}
_UNITS: dict[Format, dict[Axis, int]] = {
    Format.MXFP4: {"rows": 1, "columns": mxfp4.BLOCK},
    Format.FP8: {"rows": fp8.BLOCK, "columns": fp8.BLOCK},
}


@dataclass(frozen=True, slots=True)
class Packed:
    """Codes and scales of a matrix [rows, columns], or of a stack of them.

    `codes` is uint8: [..., rows, columns / 2] for MXFP4, [..., rows, columns] for FP8. `scales` is
    uint8: [..., rows, columns / 32], or [..., ceil(rows / 128), ceil(columns / 128)].
    """

    codes: Tensor
    scales: Tensor
    format: Format

    def __post_init__(self) -> None:
        """Hold the shapes that every reader relies on.

        Raises:
            CheckpointError: there is not one scale for each block of codes.
        """
        assert self.codes.dtype == self.scales.dtype == torch.uint8
        units = _UNITS[self.format]
        blocks = (-(-self.rows // units["rows"]), -(-self.columns // units["columns"]))
        need = (*self.codes.shape[:-2], *blocks)
        if self.scales.shape != need:
            raise CheckpointError(
                f"{self.format} codes {list(self.codes.shape)} need scales {list(need)} and have "
                f"{list(self.scales.shape)}: get the original checkpoint for --model"
            )

    @property
    def rows(self) -> int:
        """Output features."""
        return self.codes.shape[-2]

    @property
    def columns(self) -> int:
        """Input features."""
        return self.codes.shape[-1] * _PER_BYTE[self.format]

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def decode(self) -> Tensor:
        """Return the float32 matrix [..., rows, columns]."""
        if self.format is Format.MXFP4:
            return mxfp4.decode(self.codes, self.scales)
        return fp8.decode(self.codes, self.scales)

    def shard(self, axis: Axis, rank: int, count: int, *, name: str = "matrix") -> "Packed":
        """Return part `rank` of `count` equal parts along an axis, in its own storage.

        Raises:
            InputError: the cut would go through a scale block (32 columns of MXFP4, 128 rows or
                columns of FP8); names `name`, the dimension, the count and the nearest legal ones.
        """
        assert 0 <= rank < count
        length = self.rows if axis == "rows" else self.columns
        check_cut(name, axis, length, _UNITS[self.format][axis], count)
        dimension = -2 if axis == "rows" else -1
        return Packed(
            _part(self.codes, dimension, rank, count),
            _part(self.scales, dimension, rank, count),
            self.format,
        )


def _part(tensor: Tensor, dimension: int, rank: int, count: int) -> Tensor:
    """Copy one of `count` equal parts: a view would keep the whole matrix alive."""
    size = tensor.shape[dimension] // count if count > 1 else tensor.shape[dimension]
    part = tensor.narrow(dimension, rank * size, size)
    return part.clone(memory_format=torch.contiguous_format)
