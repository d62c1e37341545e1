"""What every part of the model is made with: weights by checkpoint name, shapes, operations.

Beside them the service that runs routed experts, one for all layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from deskside.experts.service import ExpertService
from deskside.formats.packed import Packed
from deskside.layout.cuts import RANK_COUNTS
from deskside.model.parallel import Ranks
from deskside.ops.linear import Weight, as_float
from deskside.ops.opset import OpSet
from deskside.spec import ModelSpec

__all__ = ["Parts", "cut_rows", "leaves_of"]

MOST_LEAVES = RANK_COUNTS[-1]
LEAF_UNIT = 128


@dataclass(frozen=True, slots=True)
class Parts:
    """The weights below one prefix of the checkpoint's names."""

    weights: Mapping[str, Weight]
    spec: ModelSpec
    ops: OpSet
    experts: ExpertService
    ranks: Ranks
    prefix: str = ""

    def below(self, name: str) -> "Parts":
        """Return the parts below a further name."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def matrix(self, name: str) -> Weight:
        """Return a matrix in its stored form."""
        return self.weights[f"{self.prefix}{name}"]

    def packed(self, name: str) -> Packed:
        """Return a matrix that must be packed."""
        weight = self.matrix(name)
        assert isinstance(weight, Packed)
        return weight

    def tensor(self, name: str) -> Tensor:
        """Return a plain tensor."""
        weight = self.matrix(name)
        assert isinstance(weight, Tensor)
        return weight


def leaves_of(width: int) -> int:
    """Return the fixed leaves of a sum over `width` inputs that ranks may share.

    The most equal cuts, at most 8, that fall on whole 128-blocks; 1 where there are none.
    """
    leaves = MOST_LEAVES
    while leaves > 1 and width % (leaves * LEAF_UNIT):
        leaves //= 2
    return leaves


def cut_rows(weight: Weight, count: int) -> tuple[Weight, ...]:
    """Cut a matrix into equal groups of rows.

    Where a group would cut a scale block (tiny test shapes), the groups are decoded instead.
    """
    if not isinstance(weight, Packed):
        return tuple(weight.chunk(count))
    if (weight.rows // count) % LEAF_UNIT:
        return tuple(as_float(weight).chunk(count))
    return tuple(weight.shard("rows", rank, count) for rank in range(count))
