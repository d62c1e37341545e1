"""How fast one request can be decoded at most: the time to move each token's weights.

Counts memory traffic and nothing else, without speculation. Pure arithmetic.
"""

from dataclasses import dataclass
from math import comb

from deskside.planning.profile import Rates
from deskside.planning.split import fetched

__all__ = ["Traffic", "tokens_per_second"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one token reads of one rank's weights."""

    dense_bytes: int
    """All but routed experts and embedding."""
    layers: int
    topk: int
    expert_bytes: int


def tokens_per_second(
    traffic: Traffic, rates: Rates, fraction: float, resident: float, in_place: bool
) -> float:
    """Predict the rate of one request.

    Args:
        traffic: of a token.
        rates: as measured.
        fraction: of the missing experts to fetch.
        resident: share of all experts that lies in slots; each choice of the router finds its
            expert there with this chance. Real residency follows use and does better.
        in_place: there are no slots: the CPU computes all.
    """
    dense = traffic.dense_bytes / max(reading.rate for reading in rates.reads)
    if in_place:
        layer = traffic.topk * traffic.expert_bytes / rates.cpu_alone
    else:
        layer = sum(
            _chance(misses, traffic.topk, 1 - resident) * _layer(misses, traffic, rates, fraction)
            for misses in range(traffic.topk + 1)
        )
    return 1 / (dense + traffic.layers * layer)


def _chance(misses: int, topk: int, missing: float) -> float:
    return comb(topk, misses) * missing**misses * (1 - missing) ** (topk - misses)


def _layer(misses: int, traffic: Traffic, rates: Rates, fraction: float) -> float:
    """Return seconds of one layer: the later of both paths, then the device's own work."""
    fetches = fetched(misses, fraction)
    here = misses - fetches
    together = fetches > 0 and here > 0
    fetching = fetches / (rates.fetch if together else rates.fetch_alone)
    computing = here / (rates.cpu if together else rates.cpu_alone)
    device = (traffic.topk - here) / rates.device
    return (max(fetching, computing) + device) * traffic.expert_bytes
