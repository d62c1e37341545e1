"""Where slots lie, and work that goes on beside the main line of work there.

The CPU is a device: its slots are a second host pool, and what a copy engine does elsewhere is done
by one thread.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["Arrival", "Device", "HostDevice"]


class Arrival(Protocol):
    """Work that was given to the side."""

    def wait(self) -> None:
        """Order what follows on the main line behind it; raises what the work raised."""
        ...


class Device(Protocol):
    """What a hybrid step needs of a device."""

    @property
    def memory(self) -> torch.device:
        """Where tensors are made."""
        ...

    def aside(self, work: Callable[[], None]) -> Arrival:
        """Start work beside the main line, after all that the main line was given before."""
        ...


@dataclass(frozen=True, slots=True)
class _Running:
    future: Future[None]

    def wait(self) -> None:
        self.future.result()


class HostDevice:
    """The CPU: the main line is the caller, the side is one thread of its own."""

    def __init__(self) -> None:
        self._side = ThreadPoolExecutor(1, "deskside-side")

    @property
    def memory(self) -> torch.device:
        """Host memory."""
        return torch.device("cpu")

    def aside(self, work: Callable[[], None]) -> Arrival:
        """Run work on the side thread, one piece after the other."""
        return _Running(self._side.submit(work))
