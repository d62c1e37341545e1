"""The width rule that was asked for, as one function of confidences, averages and costs."""

from collections.abc import Callable, Sequence

from deskside.speculate.width import WidthRule, argmax, expect, stop

__all__ = ["WidthChooser", "fixed", "rule"]

WidthChooser = Callable[[Sequence[float], Sequence[float], Sequence[float], bool], int]
"""From confidences c_1..c_n, their averages, costs D + V(0..n), and whether all is greedy."""


def fixed(width: int) -> WidthChooser:
    """Always verify this many proposals, or as many as there may be."""
    return lambda confidences, _averages, _costs, _greedy: min(width, len(confidences))


def rule(name: WidthRule) -> WidthChooser:
    """Return a rule by name.

    `argmax` looks ahead, which only a greedy request can bear; others are cut by `stop`.
    """
    if name is WidthRule.EXPECT:
        return lambda confidences, averages, costs, _greedy: expect(confidences, averages, costs)
    if name is WidthRule.ARGMAX:
        return lambda confidences, _averages, costs, greedy: (
            argmax(confidences, costs) if greedy else stop(confidences, costs)
        )
    return lambda confidences, _averages, costs, _greedy: stop(confidences, costs)
