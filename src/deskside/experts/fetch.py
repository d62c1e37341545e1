"""Copies packed experts from their banks into slots, beside the work that goes on meanwhile.

Owns the memory of the slots. Decides nothing about who lies there.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from deskside.device import Arrival, Device
from deskside.formats.packed import Packed

__all__ = ["Banks", "ExpertSlots"]

Banks = tuple[Packed, Packed, Packed]
"""Gate, up and down of a set of experts: codes and scales [experts, out, ...]."""


@dataclass(frozen=True, slots=True)
class ExpertSlots:
    """Room for some experts on a device, as banks that the kernels read by slot number."""

    device: Device
    banks: Banks

    @staticmethod
    def allocate(device: Device, like: Banks, slots: int) -> "ExpertSlots":
        """Make slots for experts of the shape of those in `like`."""
        gate, up, down = (_empty(device, bank, slots) for bank in like)
        return ExpertSlots(device, (gate, up, down))

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(bank.nbytes for bank in self.banks)

    @contextmanager
    def filling(self, source: Banks, slots: Mapping[int, int]) -> Iterator[Arrival]:
        """Copy experts of `source` to their slots while the block runs.

        The block must wait for the arrival before it reads those slots. However it ends, no copy is
        under way after it.
        """
        arrival = self.device.aside(lambda: self.copy(source, slots))
        try:
            yield arrival
        except BaseException as error:
            _settle(arrival, error)
            raise
        arrival.wait()

    def copy(self, source: Banks, slots: Mapping[int, int]) -> None:
        """Copy experts of `source` to their slots, on the line of work of the caller."""
        for ours, theirs in zip(self.banks, source, strict=True):
            for expert, slot in slots.items():
                ours.codes[slot].copy_(theirs.codes[expert], non_blocking=True)
                ours.scales[slot].copy_(theirs.scales[expert], non_blocking=True)


def _settle(arrival: Arrival, error: BaseException) -> None:
    """Let a copy end whose result nobody wants; its own fault is told beside the first one."""
    try:
        arrival.wait()
    except BaseException as late:
        if late is not error:
            error.add_note(f"and a fetch failed: {late!r}")


def _empty(device: Device, like: Packed, slots: int) -> Packed:
    def room(part: torch.Tensor) -> torch.Tensor:
        # Written once, so that the memory is taken at start and not by the first fetches.
        return torch.full((slots, *part.shape[1:]), 0, dtype=part.dtype, device=device.memory)

    return Packed(room(like.codes), room(like.scales), like.format)
