"""What a rank adds to, looks up in and joins with the parts that other ranks hold.

Owns the order of every sum that ranks share: the rank's own leaves have been added along the fixed
tree, and the ranks' parts continue that tree. With one rank nothing happens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from deskside.distributed.group import LEADER, Group
from deskside.ops.tiles import pairwise_sum

__all__ = ["Ranks"]


@dataclass(frozen=True, slots=True)
class Ranks:
    """The group as a model uses it."""

    group: Group

    @property
    def count(self) -> int:
        """How many ranks share the model."""
        return self.group.ranks

    def share(self, count: int) -> int:
        """Return one rank's part of so many groups, heads or leaves."""
        assert count % self.count == 0
        return count // self.count

    def total(self, part: Tensor) -> Tensor:
        """Add all ranks' parts of a float32 sum along the fixed tree."""
        if self.count == 1:
            return part
        (parts,) = self.group.gather(part.contiguous())
        return pairwise_sum(list(parts))

    def largest(self, numbers: Tensor) -> Tensor:
        """Return the largest of all ranks' numbers, place by place."""
        (parts,) = self.group.gather(numbers)
        return torch.stack(list(parts)).amax(0)

    def lookup(self, table: Tensor, ids: Tensor) -> Tensor:
        """Return rows of a table whose rows are cut: [n, width] float32 for ids [n] int64."""
        if self.count == 1:
            return table[ids].float()
        first = self.group.rank * table.shape[0]
        own = (ids >= first) & (ids < first + table.shape[0])
        rows = torch.where(own.unsqueeze(1), table[(ids - first).clamp(0, table.shape[0] - 1)], 0)
        # All but one part are zeros, so that joining their bits is exact for any number.
        (parts,) = self.group.gather(rows.view(torch.int16 if rows.itemsize == 2 else torch.int32))
        return reduce(torch.bitwise_or, parts).view(table.dtype).float()

    def joined(self, part: Tensor) -> Tensor:
        """Put the columns of all ranks side by side: [n, all] on the leader, [0, all] elsewhere."""
        if self.count == 1:
            return part
        parts = self.group.collect(part.contiguous())
        if self.group.rank != LEADER:
            return part.new_empty(0, part.shape[1] * self.count)
        return torch.cat(list(parts), dim=1)

    def decided(self, count: int, decide: Callable[[], Tensor]) -> Tensor:
        """Return what the leader decides, [count] int64; others do not ask."""
        if self.group.rank != LEADER:
            return self.group.share(torch.empty(count, dtype=torch.int64))
        return self.group.share(decide())
