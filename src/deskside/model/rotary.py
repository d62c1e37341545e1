"""The rotary tables of one forward: made once, used by every layer of a kind."""

from dataclasses import dataclass

from torch import Tensor

from deskside.batch import Batch
from deskside.ops.opset import OpSet
from deskside.ops.rotary import compress_frequencies, plain_frequencies
from deskside.spec import ModelSpec

__all__ = ["Rotary", "RotaryTables"]


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Cosines and sines of a batch's rows and of the entries it completes."""

    plain: Tensor
    compress: Tensor
    by_ratio: dict[int, Tensor]

    def rows(self, ratio: int) -> Tensor:
        """Return the table of the rows [rows, 2, rope/2] for layers of this ratio."""
        return self.compress if ratio else self.plain

    def entries(self, ratio: int) -> Tensor | None:
        """Return the table of the entries that become complete, None where there are none."""
        return self.by_ratio.get(ratio)


class Rotary:
    """Frequencies of both kinds of layers."""

    def __init__(self, spec: ModelSpec, ops: OpSet) -> None:
        self._plain = plain_frequencies(spec)
        self._compress = compress_frequencies(spec)
        self._ops = ops

    def tables(self, batch: Batch) -> RotaryTables:
        """Make the tables of a batch."""
        table = self._ops.rope_table
        return RotaryTables(
            plain=table(batch.positions, self._plain),
            compress=table(batch.positions, self._compress),
            by_ratio={
                ratio: table(emissions.positions, self._compress)
                for ratio, emissions in batch.emissions.items()
            },
        )

    def plain(self, batch: Batch) -> RotaryTables:
        """Make the tables of a batch that only layers without compression see."""
        table = self.rows(batch.positions)
        return RotaryTables(plain=table, compress=table[:0], by_ratio={})

    def rows(self, positions: Tensor) -> Tensor:
        """Make the plain table of positions [rows]: [rows, 2, rope/2]."""
        return self._ops.rope_table(positions, self._plain)
