"""Where accelerators sit: PCI addresses and their NUMA nodes, as sysfs tells them.

Owns the reading of /sys/bus/pci. Takes the file system's root as a path, so that tests use a tree
of their own. Knows no driver: it also sees a card that no driver has taken.
"""

from dataclasses import dataclass
from pathlib import Path

from deskside.machine.files import ROOT, text
from deskside.machine.topology import parse_cpu_list

__all__ = ["PciDevice", "node_of", "read_accelerators"]

NVIDIA = "0x10de"
DISPLAY = "0x03"
"""First digits of the class of display and 3D controllers."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """An accelerator: its address such as 0000:3b:00.0, and its node where the machine says it."""

    address: str
    node: int | None


def read_accelerators(root: Path = ROOT) -> tuple[PciDevice, ...]:
    """List the accelerators of this machine by address."""
    folder = root / "sys/bus/pci/devices"
    try:
        places = sorted(folder.iterdir())
    except OSError:
        return ()
    return tuple(
        PciDevice(place.name, node_of(place.name, root))
        for place in places
        if text(place / "vendor").strip() == NVIDIA
        and text(place / "class").strip().startswith(DISPLAY)
    )


def node_of(address: str, root: Path = ROOT) -> int | None:
    """Return the node of a PCI address in any case and with a domain of four or eight digits.

    Firmware that does not say leaves -1, and then the device's local CPUs tell it, unless they are
    of several nodes: None.
    """
    domain, _, rest = address.lower().partition(":")
    place = root / "sys/bus/pci/devices" / f"{domain[-4:]:0>4}:{rest}"
    number = text(place / "numa_node").strip()
    if number.isdigit():
        return int(number)
    local = set(parse_cpu_list(text(place / "local_cpulist")))
    nodes = root / "sys/devices/system/node"
    near = [
        node
        for node in parse_cpu_list(text(nodes / "online"))
        if local & set(parse_cpu_list(text(nodes / f"node{node}/cpulist")))
    ]
    return near[0] if len(near) == 1 else None
