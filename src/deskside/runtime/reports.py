"""What every rank says of itself once it has loaded, brought together on all of them."""

from collections.abc import Mapping

import torch
from pydantic import TypeAdapter
from torch import Tensor

from deskside.core import RankReport
from deskside.distributed.group import Group
from deskside.machine.placement import RankPlace
from deskside.machine.residency import read_residency
from deskside.model.weights import bank_ranges
from deskside.ops.linear import Weight

__all__ = ["gathered", "own_report"]

MOST = 4096
"""Bytes of a report on its way, padded with blanks."""
REPORT = TypeAdapter(RankReport)


def own_report(
    rank: int, place: RankPlace, weights: Mapping[str, Weight], device_bytes: int
) -> RankReport:
    """Return what a rank holds now and where it lies."""
    banks = bank_ranges(weights)
    bank_bytes = sum(end - start for start, end in banks)
    return RankReport(
        rank=rank,
        nodes=place.nodes,
        bank_bytes=bank_bytes,
        other_bytes=sum(weight.nbytes for weight in weights.values()) - bank_bytes,
        device_bytes=device_bytes,
        workers=len(place.workers) + place.coordinator_works,
        coordinator=place.coordinator,
        resident=read_residency(banks),
    )


def gathered(group: Group, own: RankReport) -> tuple[RankReport, ...]:
    """Return the reports of all ranks, by rank.

    Raises:
        LostRankError: another rank is gone.
    """
    said = REPORT.dump_json(own).ljust(MOST)
    assert len(said) == MOST
    (parts,) = group.gather(torch.frombuffer(bytearray(said), dtype=torch.uint8))
    return tuple(map(_read, parts))


def _read(part: Tensor) -> RankReport:
    return REPORT.validate_json(part.numpy().tobytes())
