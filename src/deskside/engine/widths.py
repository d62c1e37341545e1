"""The width rule that was asked for, as one function of confidences, averages and costs."""

from collections.abc import Callable, Sequence

from deskside.speculate.width import WidthRule, argmax, expect, stop

__all__ = ["WidthChooser", "fixed", "rule"]

WidthChooser = Callable[[Sequence[float], Sequence[float], Sequence[float]], int]
"""From confidences c_1..c_n, their averages, and costs D + V(0..n)."""


def fixed(width: int) -> WidthChooser:
    """Always verify this many proposals, or as many as there may be."""
    return lambda confidences, _averages, _costs: min(width, len(confidences))


def rule(name: WidthRule) -> WidthChooser:
    """Return a rule by name.

    `argmax` looks ahead, which only greedy requests can bear: admission has refused the others.
    """
    if name is WidthRule.EXPECT:
        return expect
    if name is WidthRule.STOP:
        return lambda confidences, _averages, costs: stop(confidences, costs)
    return lambda confidences, _averages, costs: argmax(confidences, costs)
