"""Host memory for banks: one allocation each, of new pages placed by who touches them.

Owns the mapping of pages, huge ones where asked and possible. Knows nothing of experts.
"""

import logging
import mmap
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.errors import CapacityError

__all__ = ["HostMemory"]

HUGE_PAGE = 2 * 1024**2

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """How memory is taken.

    `touch` writes to every page of new memory, given its address and size: with the workers of a
    rank each page lies on the node of one of them. Without it a page lies where it is filled.
    `pin` locks an allocation for a device that reads it by itself; None where there is no such
    device.
    """

    huge_pages: bool = True
    touch: Callable[[int, int], None] | None = None
    pin: Callable[[Tensor], None] | None = None

    def allocate(self, nbytes: int) -> Tensor:
        """Return bytes in a mapping of their own, from the start of a huge page on.

        Raises:
            CapacityError: the system refuses.
        """
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            room = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=flags)
        except OSError as error:
            raise CapacityError(
                f"the system refuses {nbytes} bytes for a bank of experts ({error.strerror}); see "
                "ulimit -v and /proc/sys/vm/overcommit_memory"
            ) from error
        if self.huge_pages:
            _ask_for_huge_pages(room)
        whole = torch.frombuffer(room, dtype=torch.uint8)  # keeps the mapping alive
        start = -whole.data_ptr() % HUGE_PAGE
        memory = whole[start : start + nbytes]
        if self.touch is not None:
            self.touch(memory.data_ptr(), nbytes)
        if self.pin is not None:
            self.pin(memory)
        return memory


def _ask_for_huge_pages(room: mmap.mmap) -> None:
    try:
        room.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:  # a kernel without them; the bank is only slower
        LOG.info("no huge pages for banks: %s", error.strerror)
