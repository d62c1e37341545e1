"""The worker pool of the compiled kernels: who works, where, and how it fails.

Owns the border to native/pool.cpp. There is one pool a process. A loop over it raises
LostWorkerError when a worker died or does not move, and so does every later one until the workers
are set again.
"""

from collections.abc import Callable

from deskside.kernels import _native
from deskside.machine.placement import RankPlace

__all__ = [
    "scratch_growths",
    "set_fault",
    "set_patience",
    "set_threads",
    "set_workers",
    "threads",
    "touch",
    "waits",
]

set_threads: Callable[[int], None] = _native.set_threads
"""Let the caller and count - 1 workers, bound to no CPU, share a kernel; 1 until called."""

threads: Callable[[], int] = _native.threads
"""Threads that share a kernel."""

scratch_growths: Callable[[], int] = _native.scratch_growths
"""How often a thread's scratch memory had to grow: a step that was run before adds nothing."""

waits: Callable[[], tuple[int, int]] = _native.waits
"""Rounds in which threads of these workers waited and kept their core, and times they slept."""

set_patience: Callable[[float], None] = _native.set_patience
"""For tests: seconds without any progress after which a worker counts as lost."""

set_fault: Callable[[int, str], None] = _native.set_fault
"""For tests: let a worker (from 1) throw, leave, vanish or hang at its next block."""

touch: Callable[[int, int], None] = _native.touch
"""Write a byte of each page of new memory, at an address and of a size, with all threads."""


def set_workers(place: RankPlace) -> tuple[str, ...]:
    """Start a rank's workers, each tied to its CPUs; return warnings about those that were not."""
    workers = [list(cpus) for cpus in place.workers]
    untied = _native.set_crew(workers, place.coordinator_works, place.spin)
    if not untied:
        return ()
    listed = ", ".join(map(str, untied))
    return (
        f"workers {listed} could not be bound to their CPUs: the system may move them off the "
        "node of their memory, and two of them onto one core",
    )
