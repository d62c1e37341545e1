"""What the environment says. No other module reads it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deskside.config.commands import ProcessOptions
from deskside.config.file import FILE_RECORDS, Values
from deskside.config.option import key_of, options_of
from deskside.errors import InputError

__all__ = [
    "TorchrunPlace",
    "from_environment",
    "notify_socket",
    "profile_folder",
    "torchrun_place",
    "wants_traceback",
]

PREFIX = "DESKSIDE_"


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Values]:
    """Return the options set by DESKSIDE_* variables, by variable; empty ones count as unset."""
    environ = os.environ if environ is None else environ
    found: dict[str, Values] = {}
    for option in options_of((*FILE_RECORDS, ProcessOptions)):
        variable = PREFIX + option.name.upper()
        if environ.get(variable):
            found[variable] = {key_of(option): environ[variable]}
    return found


def profile_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder that keeps what was measured: below XDG_CACHE_HOME, or below ~/.cache.

    A relative XDG_CACHE_HOME counts as unset, as its specification wants.
    """
    environ = os.environ if environ is None else environ
    cache = Path(environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path(environ.get("HOME") or Path.home()) / ".cache"
    return cache / "deskside" / "profiles"


def wants_traceback(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> bool:
    """Whether an internal fault is to be shown whole, known before anything is parsed."""
    environ = os.environ if environ is None else environ
    return "--debug" in arguments or environ.get(PREFIX + "DEBUG", "") not in ("", "0", "false")


@dataclass(frozen=True, slots=True)
class TorchrunPlace:
    """Who torchrun says this process is: in all, and on this machine."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    master: str
    """Address of the machine of rank 0."""


def torchrun_place(environ: Mapping[str, str] | None = None) -> TorchrunPlace | None:
    """Return who this process is where torchrun started it, else None.

    Raises:
        InputError: its variables are not numbers.
    """
    environ = os.environ if environ is None else environ
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    try:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        rank, ranks, local_rank, local_ranks = (int(environ[name]) for name in names)
        return TorchrunPlace(rank, ranks, local_rank, local_ranks, environ["MASTER_ADDR"])
    except (KeyError, ValueError) as error:
        raise InputError(f"torchrun's variables are not whole ({error})") from error


def notify_socket(environ: Mapping[str, str] | None = None) -> str | None:
    """Return where a service manager wants to hear that the service is ready."""
    environ = os.environ if environ is None else environ
    return environ.get("NOTIFY_SOCKET") or None
