"""The instruction-set tiers of the compiled kernels: which there are, and which is in use.
All tiers give the same bits; they differ in speed. Loads no torch.
"""

from dataclasses import dataclass

from deskside.errors import InputError
from deskside.kernels import _native

__all__ = ["Tiers", "force_tier", "tiers"]


@dataclass(frozen=True, slots=True)
class Tiers:
    """What this build and this processor have in common."""

    available: tuple[str, ...]
    """Tiers that run here, widest first; the first is the choice unless one was forced."""
    chosen: str
    """The tier in use."""
    forced: bool
    """Whether the tier in use was named instead of found."""


def tiers() -> Tiers:
    """Return the tiers of this process as they are now."""
    return Tiers(tuple(_native.tiers()), _native.tier(), _native.forced())


def force_tier(name: str) -> None:
    """Use a tier by name, or the widest again for `auto`.

    Raises:
        InputError: the processor or the build lacks it.
    """
    available = _native.tiers()
    if name == "auto":
        _native.release_tier()
    elif name in available:
        _native.force_tier(name)
    else:
        raise InputError(
            f"--tier {name:.60}: this processor and build have {', '.join(available)} or auto"
        )
