"""What ranks that are one model say to each other: parts of sums, and the leader's word.

Owns the protocol and the count of what goes over it. Every rank makes the same calls in the same
order with tensors of the same shapes. What is added is added along one tree, in the order of ranks,
so that no transport can change a bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

__all__ = ["ALONE", "LEADER", "Alone", "Group", "Traffic"]

LEADER = 0
"""The rank that decides."""


@dataclass(slots=True)
class Traffic:
    """What one rank has sent, and in how many calls."""

    calls: int = 0
    nbytes: int = 0

    def add(self, nbytes: int) -> None:
        """Count a call."""
        self.calls += 1
        self.nbytes += nbytes


class Group(Protocol):
    """The ranks of one model, seen from one of them."""

    @property
    def rank(self) -> int:
        """This one's number; 0 leads."""
        ...

    @property
    def ranks(self) -> int:
        """How many there are."""
        ...

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent since the start."""
        ...

    def settle(self, seconds: float, *, spin: bool) -> None:
        """From now on a rank that does not answer for this long counts as lost.

        `spin` says whether a rank that waits may keep its core for a moment. All ranks call it.
        """
        ...

    def enter(self, doing: str) -> None:
        """Note what this rank is about to do: the words for it, should it be lost."""
        ...

    def gather(self, *parts: Tensor) -> Sequence[Sequence[Tensor]]:
        """Exchange parts, in one message; of each return all ranks', by rank.

        What is returned may be overwritten by the next call.

        Args:
            parts: contiguous, of the same shapes and types on every rank.

        Raises:
            LostRankError: a rank is gone, or is not there in time.
        """
        ...

    def total(self, *parts: Tensor) -> Sequence[Tensor]:
        """Exchange parts, in one message; return each one's sum over all ranks.

        Neighbours are added first, with the bits of `ops.tiles.pairwise_sum`.

        Args:
            parts: contiguous float32 or int64, of the same shapes and types on every rank.

        Raises:
            LostRankError: as `gather`.
        """
        ...

    def collect(self, part: Tensor) -> Sequence[Tensor]:
        """Return the parts of all ranks to the leader, and nothing to others; as `gather`."""
        ...

    def share(self, numbers: Tensor) -> Tensor:
        """Return the leader's tensor; others give one of its shape and type to fill.

        Raises:
            LostRankError: as `gather`.
        """
        ...

    def tell(self, record: bytes | None) -> bytes:
        """Return the leader's record to every rank; others pass None.

        A rank waits here for as long as the leader has nothing to say.

        Raises:
            LostRankError: the leader is gone.
        """
        ...


class Alone:
    """A group of one."""

    rank = LEADER
    ranks = 1

    def __init__(self) -> None:
        self.traffic = Traffic()

    def settle(self, seconds: float, *, spin: bool) -> None:
        """Wait for nobody."""

    def enter(self, doing: str) -> None:
        """Note nothing."""

    def gather(self, *parts: Tensor) -> Sequence[Sequence[Tensor]]:
        """Return the one rank's parts."""
        return [(part,) for part in parts]

    def total(self, *parts: Tensor) -> Sequence[Tensor]:
        """Return the one rank's parts."""
        return parts

    def collect(self, part: Tensor) -> Sequence[Tensor]:
        """Return the one part."""
        return (part,)

    def share(self, numbers: Tensor) -> Tensor:
        """Return the numbers."""
        return numbers

    def tell(self, record: bytes | None) -> bytes:
        """Return the record."""
        assert record is not None
        return record


ALONE = Alone()
"""What a model on one rank is given; it counts nothing."""
