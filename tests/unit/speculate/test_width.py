"""Width rules: hand-made steps, edges, and how the rules relate to each other."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskside.speculate.width import Averages, SpeedBudget, argmax, expect, stop, survivals

CHANCE = st.floats(0, 1)
STEP = st.lists(CHANCE, min_size=0, max_size=5)
COSTS = st.lists(st.floats(0.01, 3), min_size=6, max_size=6).map(
    lambda steps: [sum(steps[: k + 1]) for k in range(6)]
)


def rates(confidences: list[float], costs: list[float]) -> list[float]:
    kept = [0.0, *survivals(confidences)]
    return [(1 + sum(kept[: k + 1])) / costs[k] for k in range(len(kept))]


def test_survival_is_a_running_product() -> None:
    assert survivals([0.5, 0.5, 0.0, 1.0]) == [0.5, 0.25, 0.0, 0.0]
    assert survivals([]) == []


def test_the_rules_on_the_named_example() -> None:
    costs = [2.0, 3.2, 3.6]
    assert (stop([0.6, 0.1], costs), argmax([0.6, 0.1], costs)) == (0, 0)
    assert (stop([0.6, 0.95], costs), argmax([0.6, 0.95], costs)) == (0, 2)
    assert expect([0.6, 0.1], [0.6, 0.95], costs) == 1, "c_2 of 0.95 was expected, 0.1 came"
    assert expect([0.6, 0.95], [0.6, 0.95], costs) == 2
    assert expect([0.6, 0.95], [0.6, 0.1], costs) == 0


def test_expect_looks_past_a_costly_first_step() -> None:
    costs = [1.0, 2.1, 2.2, 2.3, 2.4, 2.5]
    sure = [0.95] * 5
    assert stop(sure, costs) == 0
    assert expect(sure, sure, costs) == argmax(sure, costs) == 5


@pytest.mark.parametrize("rule", [stop, argmax, lambda c, v: expect(c, c, v)])
def test_edges(rule) -> None:
    assert rule([], [1.0]) == 0
    assert rule([1.0] * 3, [1.0] * 4) == 3, "rows that cost nothing"
    assert rule([0.0] * 3, [1.0] * 4) == 0, "a tie keeps the smaller width"
    assert rule([1.0, 1.0], [1.0, 2.0, 3.0]) == 0, "a tie keeps the smaller width"
    assert rule([1.0, 0.0, 1.0], [1.0, 1.5, 1.6, 1.7]) == 1


@given(STEP, COSTS)
def test_argmax_is_the_first_of_the_best(confidences: list[float], costs: list[float]) -> None:
    exact = [Fraction(c) for c in confidences]
    found = rates(exact, [Fraction(c) for c in costs])
    assert argmax(exact, [Fraction(c) for c in costs]) == found.index(max(found))


@given(STEP, COSTS)
def test_with_one_peak_stop_is_the_argmax(confidences: list[float], costs: list[float]) -> None:
    exact, prices = [Fraction(c) for c in confidences], [Fraction(c) for c in costs]
    found = rates(exact, prices)
    best = found.index(max(found))
    one_peak = all(a < b for a, b in pairwise(found[: best + 1]))
    width = stop(exact, prices)
    assert width <= best
    assert not one_peak or width == best


@given(STEP, COSTS, st.lists(CHANCE, min_size=5, max_size=5), st.data())
def test_no_rule_for_sampling_looks_ahead(confidences, costs, averages, data) -> None:
    """Whether proposal k is admitted stays the same whatever c_{k+1} and later are."""
    k = data.draw(st.integers(0, len(confidences)))
    rest = st.lists(CHANCE, min_size=len(confidences) - k, max_size=len(confidences) - k)
    changed = confidences[:k] + data.draw(rest)

    def pooled(known: list[float]) -> int:
        return SpeedBudget(lambda rows: costs[min(rows, 6) - 1]).widths([known, [0.7]], 2)[0]

    for width in (
        lambda c: stop(c, costs),
        lambda c: expect(c, averages, costs),
        pooled,
    ):
        assert min(width(confidences), k) == min(width(changed), k)


@given(STEP, COSTS)
def test_the_pool_of_one_is_stop(confidences: list[float], costs: list[float]) -> None:
    budget = SpeedBudget(lambda rows: costs[rows - 1])
    assert budget.widths([confidences], 1) == [stop(confidences, costs)]


def test_the_pool_serves_the_surest_first() -> None:
    budget = SpeedBudget(lambda rows: 1.0 + 0.3 * rows)
    assert budget.widths([[0.9, 0.9], [0.2, 1.0], []], 3) == [2, 0, 0]
    assert budget.widths([[1.0, 1.0], [1.0]], 2) == [2, 1]
    assert budget.widths([[1.0, 1.0], [1.0]], 200) == [2, 1], "beside a chunk a row costs little"
    assert budget.widths([], 1) == []


def test_averages_start_at_the_prior_and_follow() -> None:
    averages = Averages(2, prior=0.5)
    assert averages.values() == [0.5, 0.5]
    averages.observe([1.0, 0.0])
    averages.observe([0.75, 0.1])
    assert averages.values() == pytest.approx([0.75, 0.2])
