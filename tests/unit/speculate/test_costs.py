"""The cost table: monotone, linear between its points, its slope beyond them."""

import pytest

from deskside.speculate.costs import MEASURED_ROWS, CostTable


def test_noise_never_makes_more_rows_cheaper() -> None:
    table = CostTable.measured(0.5, {1: 2.0, 2: 1.5, 3: 3.0, 4: 2.5, 6: 4.0})
    assert table.seconds == (1.5, 1.5, 2.5, 2.5, 4.0)
    assert [table.forward(n) for n in range(1, 7)] == [1.5, 1.5, 2.5, 2.5, 3.25, 4.0]
    assert table.widths(3) == (2.0, 2.0, 3.0, 3.0)
    assert table.step(5) == 3.75


def test_one_disturbed_point_makes_no_other_dear() -> None:
    table = CostTable.measured(0.0, {1: 1.0, 2: 1.1, 3: 9.0, 4: 1.3, 6: 1.5})
    assert table.seconds == (1.0, 1.1, 1.3, 1.3, 1.5)


def test_beyond_the_last_point_the_slope_goes_on() -> None:
    table = CostTable.measured(0.0, {1: 1.0, 2: 2.0, 4: 3.0})
    assert [table.forward(n) for n in (4, 6, 8)] == [3.0, 4.0, 5.0]
    assert CostTable.measured(0.0, {1: 1.0}).forward(3) == 3.0


def test_between_the_points_costs_never_fall() -> None:
    table = CostTable.measured(0.1, {n: 1.0 + 0.2 * (n % 5) + 0.01 * n for n in MEASURED_ROWS})
    costs = [table.forward(n) for n in range(1, 100)]
    assert costs == sorted(costs)


def test_the_curve_is_one_line() -> None:
    table = CostTable.measured(0.0021, {1: 0.010, 2: 0.0125})
    assert table.curve() == "draft 2.10 ms; forward by rows in ms: 1: 10.00, 2: 12.50"


@pytest.mark.parametrize("seconds", [{2: 1.0}, {1: 0.0}])
def test_a_table_needs_one_row_and_real_times(seconds: dict[int, float]) -> None:
    with pytest.raises(AssertionError):
        CostTable.measured(0.0, seconds)
