"""Where tensor-parallel ranks may cut a packed dimension: only between whole scale blocks.

Owns the rule and its message, so that a plan refuses what a load would refuse.
"""

from collections.abc import Sequence

from deskside.errors import InputError

__all__ = ["RANK_COUNTS", "check_cut", "legal_counts"]

RANK_COUNTS = (1, 2, 4, 8)
"""How many ranks may share a model: cuts of a tree of eight leaves, at a level of it."""


def legal_counts(length: int, unit: int) -> tuple[int, ...]:
    """Return, ascending, the rank counts that cut `length` into equal parts of whole units.

    One part is always legal, also where the length itself ends in a partial unit.
    """
    if length % unit:
        return (1,)
    units = length // unit
    return tuple(count for count in range(1, units + 1) if units % count == 0)


def check_cut(
    name: str, dimension: str, length: int, unit: int, count: int, among: Sequence[int] = ()
) -> None:
    """Refuse to cut `length` elements of a tensor's dimension into `count` parts.

    `among` are the counts that may be named as legal ones; all of them without it.

    Raises:
        InputError: names the tensor, the dimension, the count and the nearest legal counts.
    """
    if count == 1 or length % (unit * count) == 0:
        return
    legal = [one for one in legal_counts(length, unit) if not among or one in among]
    below = max(c for c in legal if c < max(count, 2))
    above = min((c for c in legal if c > count), default=None)
    nearest = f"{below}" if above in (None, below) else f"{below} or {above}"
    raise InputError(
        f"{name}: {count} ranks cannot cut {length} {dimension} into equal parts of whole blocks "
        f"of {unit}; use --tp {nearest}"
    )
