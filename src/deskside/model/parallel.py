"""What a rank adds to, looks up in and joins with the parts that other ranks hold.

Owns the order of every sum that ranks share: the rank's own leaves have been added along the fixed
tree, and the ranks' parts continue that tree. With one rank nothing happens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.distributed.group import LEADER, Group

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
        (found,) = self.group.total(part.contiguous())
        return found

    def largest(self, numbers: Tensor) -> Tensor:
        """Return the largest of all ranks' numbers, place by place."""
        (parts,) = self.group.gather(numbers)
        return torch.stack(list(parts)).amax(0)

    def lookup(self, table: Tensor, ids: Tensor) -> Tensor:
        """Return rows of a table whose rows are cut: [n, width] float32 for ids [n] int64."""
        if self.count == 1:
            return table[ids].float()
        held = table.shape[0]
        # Every rank sends the row that would be its own; all know which one is meant.
        (parts,) = self.group.gather(table[ids % held])
        owner = (ids // held).unsqueeze(1)
        rows = parts[0]
        for rank, part in enumerate(parts[1:], 1):
            rows = torch.where(owner == rank, part, rows)
        return rows.float()

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

    def kept(self, count: int, decide: Callable[[], Tensor]) -> Tensor:
        """Return what the leader decides, [count] int64, to itself; zeros to others."""
        if self.group.rank != LEADER:
            return torch.zeros(count, dtype=torch.int64)
        return decide()
