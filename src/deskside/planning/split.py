"""How experts are shared between the device and the CPU: whole experts, by one number.

The number is the fetch fraction: the device's share of bytes that would let both ends finish
together, q* = beta_g / (beta_g + beta_c) of their rates while both run. Pure arithmetic.
"""

import math

__all__ = ["fetched", "fewest_slots", "fixed_places"]


def fetched(misses: int, fraction: float) -> int:
    """Return how many of a layer's missing experts to fetch, so that the later end is earliest.

    Fetching f of m takes f / q on one side while the other computes (m - f) / (1 - q). Of two
    equal splits the one with fewer fetches is taken.
    """
    assert misses >= 0
    assert 0 <= fraction <= 1
    below = min(math.floor(misses * fraction), misses - 1)
    if below < 0:
        return 0
    # Exchanging the divisors for factors keeps 0 and 1 in the same formula.
    later_without = max(below * (1 - fraction), (misses - below) * fraction)
    later_with = max((below + 1) * (1 - fraction), (misses - below - 1) * fraction)
    return below + (later_with < later_without)


def fixed_places(experts: int, fraction: float) -> frozenset[int]:
    """Return the experts of a layer that run on the device for every prompt row.

    As many as `fetched` takes of all of them, evenly spread over the ids.
    """
    count = fetched(experts, fraction)
    return frozenset(e for e in range(experts) if (e + 1) * count // experts > e * count // experts)


def fewest_slots(experts: int, topk: int, rows: int) -> int:
    """Return the slots that one layer's step of up to `rows` generated rows can need."""
    return min(experts, topk * rows)
