"""Where the ranks of this machine compute: from a plan and options, and what is said about it.

Loads no torch, so that a check of the machine can ask too.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace

from deskside.config.engine import EngineOptions
from deskside.machine.placement import Placement, place
from deskside.machine.residency import read_residency
from deskside.machine.topology import Topology
from deskside.report.placement import astray, residency_line, threads_line

__all__ = ["placed", "tell"]

LOG = logging.getLogger(__name__)
LOSSES = logging.getLogger("deskside.machine")
"""What the user is told without asking: this machine could do better."""


def placed(topology: Topology, options: EngineOptions, ranks: int = 1) -> Placement:
    """Divide the machine as it was found, before anything was bound.

    Raises:
        InputError: more threads than a rank has CPUs.
    """
    threads = None if options.threads == "auto" else options.threads
    placement = place(topology, ranks, threads=threads)
    if options.bind == "off":
        return replace(placement, ranks=tuple(rank.loose() for rank in placement.ranks))
    return placement


def tell(placement: Placement, banks: Iterable[tuple[int, int]]) -> None:
    """Log the placement, and where the banks came to lie on a machine of several nodes."""
    for one in placement.ranks:
        LOG.info("%s", threads_line(one))
    if len(placement.topology.nodes) > 1:
        found = read_residency(banks)
        LOG.info("%s", residency_line(found))
        for loss in astray(placement, found):
            LOSSES.warning("%s", loss)
