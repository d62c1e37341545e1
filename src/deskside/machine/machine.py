"""The facts of a machine that plans are made from: memory, and the CPUs in their places.

Owns nothing but the pair; takes the file system's root as a path.
"""

from dataclasses import dataclass
from pathlib import Path

from deskside.machine.files import ROOT
from deskside.machine.memory import Memory, read_memory
from deskside.machine.topology import Topology, read_topology

__all__ = ["Machine", "read_machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """What this process may use."""

    memory: Memory
    topology: Topology


def read_machine(root: Path = ROOT) -> Machine:
    """Read memory and topology as they are now."""
    return Machine(read_memory(root), read_topology(root))
