"""Whole experts shared by one number, against every other way to share them."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskside.planning.split import fetched, fewest_slots, fixed_places

NUMBERS = st.integers(0, 100)


def seconds(fetch: int, misses: int, device: Fraction, cpu: Fraction) -> Fraction:
    """Return when the later of both ends, by rates whose sum is 1."""
    if (fetch and not device) or (misses - fetch and not cpu):
        return Fraction(10**9)
    return max(
        fetch / device if device else Fraction(0), (misses - fetch) / cpu if cpu else Fraction(0)
    )


@given(st.integers(0, 40), NUMBERS, NUMBERS)
def test_no_other_split_ends_earlier(misses: int, device: int, cpu: int) -> None:
    total = max(device + cpu, 1)
    rates = (Fraction(device, total), 1 - Fraction(device, total))
    found = fetched(misses, device / total)
    best = min(seconds(fetch, misses, *rates) for fetch in range(misses + 1))
    # Two splits that tie in exact numbers may be told apart by the last bit of a float.
    assert seconds(found, misses, *rates) == pytest.approx(best, rel=1e-12)


def test_the_ends_of_the_scale() -> None:
    assert [fetched(misses, 0.0) for misses in range(5)] == [0] * 5
    assert [fetched(misses, 1.0) for misses in range(5)] == list(range(5))


@pytest.mark.parametrize(
    ("misses", "fetch"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (6, 1), (7, 2), (25, 7)]
)
def test_a_quarter_and_a_bit(misses: int, fetch: int) -> None:
    assert fetched(misses, 0.28) == fetch


def test_of_equal_splits_the_one_with_fewer_fetches() -> None:
    assert fetched(1, 0.5) == 0
    assert fetched(3, 0.5) == 1


@given(st.integers(1, 300), st.floats(0, 1))
def test_fixed_places_are_spread(experts: int, fraction: float) -> None:
    places = fixed_places(experts, fraction)
    assert len(places) == fetched(experts, fraction)
    assert places <= set(range(experts))
    if places:
        ordered = sorted(places)
        gaps = [b - a for a, b in pairwise(ordered)]
        assert max(gaps, default=1) - min(gaps, default=1) <= 1


def test_the_fewest_slots() -> None:
    assert fewest_slots(256, 6, 6) == 36
    assert fewest_slots(256, 6, 1000) == 256
