"""Who computes which expert in one layer's step: decided from routing and residency, on the host.

Generated rows have exact sums, so their experts may run anywhere: resident ones on the device, the
missing ones split. Prompt rows have float sums, so each of their experts has a fixed place,
resident or not: a row's bits must not depend on what others have left in the slots.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deskside.errors import CheckpointError
from deskside.planning.split import fetched, fixed_places

__all__ = ["Split", "renumbered", "split_of"]


@dataclass(frozen=True, slots=True)
class Split:
    """Experts of one layer's step, each in one of three groups, ascending."""

    hits: tuple[int, ...]
    """Resident and used."""
    fetches: tuple[int, ...]
    """To be fetched and used."""
    here: tuple[int, ...]
    """Computed in place by the CPU."""


def split_of(
    ids: Tensor, held: Collection[int], experts: int, fraction: float, *, generated: bool
) -> Split:
    """Split the experts that rows of one kind are routed to.

    Args:
        ids: [rows, topk] int64, -1 for an expert handled elsewhere.
        held: the layer's resident experts.
        experts: of the layer.
        fraction: of the missing experts to fetch.
        generated: the rows' kind.

    Raises:
        CheckpointError: an id is none of `experts`.
    """
    rows = _rows(ids, experts)
    hits = [expert for expert in rows if expert in held]
    misses = [expert for expert in rows if expert not in held]
    if generated:
        # Those with the most rows first: the device's arithmetic is the cheaper one.
        misses.sort(key=lambda expert: (-rows[expert], expert))
        count = fetched(len(misses), fraction)
        fetches, here = misses[:count], misses[count:]
    else:
        device = fixed_places(experts, fraction)
        fetches = [expert for expert in misses if expert in device]
        here = [expert for expert in rows if expert not in device]
        hits = [expert for expert in hits if expert in device]
    return Split(tuple(hits), tuple(sorted(fetches)), tuple(sorted(here)))


def _rows(ids: Tensor, experts: int) -> dict[int, int]:
    """Count the rows of every expert that has any, ascending: the step's one read of ids."""
    found, counts = np.unique(ids.cpu().numpy(), return_counts=True)
    for wrong in found[(found < -1) | (found >= experts)].tolist():
        raise CheckpointError(
            f"expert {wrong} of a bank of {experts}: its routing is damaged, download the "
            "checkpoint again"
        )
    rows = zip(found.tolist(), counts.tolist(), strict=True)
    return {expert: count for expert, count in rows if expert >= 0}


def renumbered(ids: Tensor, places: Mapping[int, int], experts: int) -> Tensor:
    """Return ids with experts replaced by their places, and by -1 where they have none."""
    table = torch.full((experts + 1,), -1, dtype=torch.int64)  # its end is the place of id -1
    table[list(places)] = torch.tensor(list(places.values()), dtype=torch.int64)
    return table.to(ids.device)[ids]
