"""Where slots lie, and work that goes on beside the main line of work there.

The CPU is a device: its slots are a second host pool, and what a copy engine does elsewhere is done
by one thread. Owns the pinning of host memory for a GPU that copies by itself.
"""

import logging
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

__all__ = ["Arrival", "Device", "HostDevice", "Pins", "Registrar", "host_pins"]

PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every GPU of the process."""

LOG = logging.getLogger(__name__)


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


class Registrar(Protocol):
    """What pinning needs of the CUDA runtime; both return an error code, 0 for success."""

    def cudaHostRegister(self, address: int, size: int, flags: int, /) -> int:  # noqa: N802
        """Lock pages and make them known to all GPUs."""
        ...

    def cudaHostUnregister(self, address: int, /) -> int:  # noqa: N802
        """Undo it; the pages must still be mapped."""
        ...


class Pins:
    """Host memory locked for GPUs where it lies: no second copy of a bank.

    Holds what it pinned: memory must not go before it is unpinned. Unpins at `close`, and where
    that never comes, when nobody holds this object any more.
    """

    def __init__(self, registrar: Registrar) -> None:
        self._registrar = registrar
        self._held: list[Tensor] = []
        self._finalize = weakref.finalize(self, _unpin, registrar, self._held)

    @property
    def nbytes(self) -> int:
        """Bytes that are pinned now."""
        return sum(memory.nbytes for memory in self._held)

    def pin(self, memory: Tensor) -> None:
        """Pin a contiguous allocation; one that can't be pinned is only slower to copy from."""
        assert memory.is_contiguous()
        code = self._registrar.cudaHostRegister(memory.data_ptr(), memory.nbytes, PORTABLE)
        if int(code):
            LOG.warning(
                "%d bytes of experts could not be pinned (CUDA error %d), so copies to the GPU "
                "take a detour: raise the limit of locked memory (ulimit -l), or free host memory",
                memory.nbytes,
                int(code),
            )
            return
        self._held.append(memory)

    def close(self) -> None:
        """Unpin all, the last first; any number of times."""
        self._finalize()


def host_pins() -> Pins | None:
    """Return a place for pinned memory, None where there is no GPU."""
    if not torch.cuda.is_available():
        return None
    return Pins(cast("Registrar", torch.cuda.cudart()))


def _unpin(registrar: Registrar, held: list[Tensor]) -> None:
    while held:
        memory = held.pop()
        code = int(registrar.cudaHostUnregister(memory.data_ptr()))
        if code:
            LOG.warning("%d bytes stay pinned (CUDA error %d)", memory.nbytes, code)
