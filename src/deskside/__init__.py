"""deskside serves a frontier Mixture-of-Experts checkpoint from the workstation beside your desk.

Public names load on first use, so that `import deskside` costs nothing and needs no torch.
"""

from importlib import import_module
from typing import Any

__all__ = ["DesksideError", "FinishReason", "Request", "SamplingParams", "__version__"]

_HOMES = {
    "DesksideError": "deskside.errors",
    "FinishReason": "deskside.core",
    "Request": "deskside.core",
    "SamplingParams": "deskside.core",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("deskside")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'deskside' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
