"""What every result says of itself: when, at which commit, and on what it was measured."""

import platform
import subprocess
from datetime import UTC, datetime
from typing import Any

import torch

from deskside.kernels.tiers import tiers
from deskside.machine.machine import read_machine

__all__ = ["origin"]


def origin() -> dict[str, Any]:
    """Return date, commit, processor, instruction set and versions."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() or None,
        "processor": read_machine().topology.model,
        "kernels": tiers().chosen,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
