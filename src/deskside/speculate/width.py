"""How many proposals are worth verifying.

Confidence c_i estimates that proposal i is accepted if those before it were. Survival
S_k = c_1 ... c_k, yield E(k) = 1 + S_1 + ... + S_k tokens, and a step of width k costs D + V(k).
The best width has the highest E(k) / (D + V(k)); width 0 is legal, ties keep the smaller.

Proposal k may be admitted by c_1..c_k only: c_{k+1} depends on the value of proposal k, and a rule
that sees it keeps a biased selection of proposals. `stop` and `expect` obey, `argmax` does not and
is for greedy requests alone, where any rule is exact.

Numbers are floats; exact fractions work as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Averages", "SpeedBudget", "WidthRule", "argmax", "expect", "stop", "survivals"]


class WidthRule(StrEnum):
    """The rules by name."""

    STOP = "stop"
    EXPECT = "expect"
    ARGMAX = "argmax"
    BIASED_ARGMAX = "biased-argmax"
    """`argmax` where sampled requests are let in as well."""


def survivals(confidences: Sequence[float]) -> list[float]:
    """Return S_1..S_n of c_1..c_n."""
    found: list[float] = []
    for confidence in confidences:
        found.append(found[-1] * confidence if found else confidence)
    return found


def stop(confidences: Sequence[float], costs: Sequence[float]) -> int:
    """Walk upwards and end at the first width that does not raise the rate.

    Args:
        confidences: c_1..c_n, each in [0, 1].
        costs: D + V(k) for k = 0..n or more, each above 0.

    Returns:
        A width in 0..n. Where the rate has one peak this is the argmax.
    """
    earned: float = 1
    for k, survival in enumerate(survivals(confidences), start=1):
        if not _pays(earned, costs[k - 1], earned + survival, costs[k]):
            return k - 1
        earned += survival
    return len(confidences)


def expect(confidences: Sequence[float], averages: Sequence[float], costs: Sequence[float]) -> int:
    """Admit proposal k if, by what is usual behind it, some width from k on beats k - 1.

    Args:
        confidences: c_1..c_n, each in [0, 1].
        averages: what c_1..c_n are on average, known before this step's draft.
        costs: D + V(k) for k = 0..n or more, each above 0.

    Returns:
        A width in 0..n.
    """
    earned: float = 1
    for k, survival in enumerate(survivals(confidences), start=1):
        ahead, usual = earned, survival
        for j in range(k, len(confidences) + 1):
            usual = usual if j == k else usual * averages[j - 1]
            ahead += usual
            if _pays(earned, costs[k - 1], ahead, costs[j]):
                break
        else:
            return k - 1
        earned += survival
    return len(confidences)


def argmax(confidences: Sequence[float], costs: Sequence[float]) -> int:
    """Return the width of the highest rate, with all confidences seen: for greedy requests."""
    best, best_earned, earned = 0, 1.0, 1.0
    for k, survival in enumerate(survivals(confidences), start=1):
        earned += survival
        if _pays(best_earned, costs[best], earned, costs[k]):
            best, best_earned = k, earned
    return best


@dataclass(slots=True)
class Averages:
    """Running averages of one request's confidences by place, from the drafts before this one."""

    block: int
    prior: float = 0.75
    """Counts as one observation of every place."""
    _sums: list[float] = field(init=False)
    _count: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        """Start from the prior."""
        self._sums = [self.prior] * self.block

    def observe(self, confidences: Sequence[float]) -> None:
        """Take in one draft's c_1..c_block, after its width was chosen."""
        self._count += 1
        self._sums = [s + c for s, c in zip(self._sums, confidences, strict=True)]

    def values(self) -> list[float]:
        """Return the averages of c_1..c_block."""
        return [total / self._count for total in self._sums]


@dataclass(frozen=True, slots=True)
class SpeedBudget:
    """One list of the proposals of all requests, by descending survival, cut where it stops paying.

    A proposal stands before every later one of its own request, so its admission never depends on
    a confidence behind it. With one request this is `stop`.
    """

    cost: Callable[[int], float]
    """D + V for a number of rows in the forward."""

    def widths(self, confidences: Sequence[Sequence[float]], rows: int) -> list[int]:
        """Return a width for every request.

        Args:
            confidences: c_1..c_n of each request, cut to what it may verify.
            rows: rows of the forward before any proposal is admitted.
        """
        pool = [
            (-survival, place, request)
            for request, known in enumerate(confidences)
            for place, survival in enumerate(survivals(known))
        ]
        widths = [0] * len(confidences)
        earned: float = len(confidences)
        for loss, _, request in sorted(pool):
            if not _pays(earned, self.cost(rows), earned - loss, self.cost(rows + 1)):
                break
            widths[request] += 1
            earned, rows = earned - loss, rows + 1
        return widths


def _pays(earned: float, cost: float, more: float, dearer: float) -> bool:
    """Whether more / dearer exceeds earned / cost."""
    return more * cost > earned * dearer
