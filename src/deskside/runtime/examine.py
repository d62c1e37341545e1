"""Looks at this machine for `deskside doctor`: reads the facts that the report judges.

Loads no torch and no weight.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from deskside.config.engine import EngineOptions
from deskside.errors import DesksideError
from deskside.kernels.tiers import force_tier, tiers
from deskside.machine.binding import bind
from deskside.machine.devices import read_accelerators
from deskside.machine.files import ROOT, text
from deskside.machine.machine import read_machine
from deskside.report.doctor import Check, Facts, diagnose
from deskside.runtime.leftovers import leftovers
from deskside.runtime.placing import placed
from deskside.runtime.preview import preview

__all__ = ["examine"]

T = TypeVar("T")


def examine(model: str, options: EngineOptions, root: Path = ROOT) -> tuple[Check, ...]:
    """Check this machine for a model and options."""
    machine = read_machine(root)
    tier_error = _or_error(lambda: force_tier(options.tier))
    return diagnose(
        Facts(
            machine=machine,
            devices=read_accelerators(root),
            tiers=tiers(),
            tier_error=tier_error,
            placement=_or_error(lambda: placed(machine.topology, options)),
            bind_error=bind(os.sched_getaffinity(0)),
            plan=_or_error(lambda: preview(model, options)),
            huge_pages=_huge_pages(root),
            load=os.getloadavg()[0],
            leftovers=[left.line() for left in leftovers(_temporary(root), root)],
        )
    )


def _or_error(make: Callable[[], T]) -> T | DesksideError:
    """Return what was made, or the refusal: a row of its own."""
    try:
        return make()
    except DesksideError as error:
        return error


def _temporary(root: Path) -> Path:
    """Return where temporary files go, below the root of the tree that is looked at."""
    return root / Path(tempfile.gettempdir()).relative_to("/")


def _huge_pages(root: Path) -> str | None:
    """Return the chosen word of a line such as `always [madvise] never`."""
    line = text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    _, bracket, rest = line.partition("[")
    return rest.partition("]")[0] if bracket else None
