"""Where the costs of a draft and a forward come from: this machine's profile, or a measurement.

A measurement is kept in the profile, and later starts read it there: a request that names its seed
is cut by these numbers, and its tokens must not change from one start to the next.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from deskside.engine.speculation import Speculator
from deskside.errors import ProfileError
from deskside.machine.fingerprint import Fingerprint
from deskside.planning import profile
from deskside.spec import ModelSpec
from deskside.speculate.costs import CostTable

__all__ = ["CostRecord", "with_costs"]

log = logging.getLogger("deskside.speculation")


@dataclass(frozen=True, slots=True)
class CostRecord:
    """The place in the profile for one model, machine and way of running."""

    folder: Path
    spec: ModelSpec
    machine: Fingerprint
    conditions: str
    """The options that a forward's time depends on."""

    def read(self) -> CostTable | None:
        """Return what an earlier start left, or None."""
        try:
            known = profile.load(self.folder, self.spec, self.machine)
        except ProfileError:
            return None
        costs = known.costs.get(self.conditions)
        if costs is None or 1 not in costs.forward:
            return None
        return CostTable.measured(costs.draft, costs.forward)

    def write(self, table: CostTable) -> None:
        """Leave a table for later starts.

        Raises:
            ProfileError: it cannot be written.
        """
        forward = dict(zip(table.rows, table.seconds, strict=True))
        costs = profile.Costs(draft=table.draft, forward=forward)
        profile.store_costs(self.folder, self.spec, self.machine, {self.conditions: costs})


def with_costs(
    speculator: Speculator, record: CostRecord, measure: Callable[[], CostTable], again: bool
) -> Speculator:
    """Return the speculator with the costs of this machine.

    Args:
        speculator: with stored costs that hold where nothing can be kept.
        record: where the costs are kept.
        measure: takes them.
        again: whether to measure even though they are known.
    """
    known = None if again else record.read()
    if known is not None:
        log.info("costs of an earlier start: %s", known.curve())
        return replace(speculator, costs=known, stored=known)
    table = measure()
    log.info("measured costs: %s", table.curve())
    try:
        record.write(table)
    except ProfileError as error:
        log.warning("%s; requests with a seed count with built-in costs", error)
        return replace(speculator, costs=table)
    return replace(speculator, costs=table, stored=table)
