"""What a measurement depends on: with another of these facts its numbers mean nothing.

Owns the comparison and its words. Measures nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from deskside.machine.topology import Topology

__all__ = ["Fingerprint"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The facts of a machine and of what may be used of it."""

    cpu: str
    """Model name of the processor."""
    cpus: str
    """Allowed CPUs as a kernel list, such as `0-15,32-47`."""
    threads: int
    """Threads that compute."""
    kernels: str
    """Instruction set of the compiled kernels, or `plain`."""
    device: str = "cpu"
    """What holds the slots; `cpu` where a second host pool does."""
    driver: str = "none"
    """Version of the device's driver."""

    @staticmethod
    def of(topology: Topology, threads: int, kernels: str) -> "Fingerprint":
        """Return the fingerprint of a machine without a device."""
        return Fingerprint(topology.model, cpu_list(topology.cpus), threads, kernels)

    def differences(self, now: "Fingerprint") -> str:
        """Say in which facts `now` differs, such as `threads 2, now 4`; empty where in none."""
        pairs = (
            (field.name, getattr(self, field.name), getattr(now, field.name))
            for field in fields(self)
        )
        return "; ".join(f"{name} {then}, now {at}" for name, then, at in pairs if then != at)


def cpu_list(cpus: tuple[int, ...]) -> str:
    """Return ascending numbers as a kernel list, such as `0-3,8`."""
    return ",".join(
        f"{first}-{last}" if last > first else f"{first}" for first, last in _ranges(cpus)
    )


def _ranges(numbers: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    start = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield numbers[start], numbers[place - 1]
            start = place
