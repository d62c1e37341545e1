"""`deskside config show`: every option, its value, and where the value came from."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deskside.config.environment import from_environment
from deskside.config.file import Values, option_fields, read_file

if TYPE_CHECKING:
    from dataclasses import Field

__all__ = ["settings_lines"]

SECRET = ("api-key",)
DEFAULT = "default"


def settings_lines(path: Path | None, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a line for each option, as a command would take it that is given no flag.

    Raises:
        InputError: the file cannot be read, or has a key that no option has.
    """
    layers: list[tuple[str, Values]] = list(from_environment(environ).items())
    if path is not None:
        layers.append((str(path), read_file(path)))
    rows = [_row(option, layers) for option in option_fields()]
    widths = [max(len(row[at]) for row in rows) for at in range(2)]
    return [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows]


def _row(option: "Field[Any]", layers: Iterable[tuple[str, Values]]) -> tuple[str, str, str]:
    """Return name, value and origin; the first layer that has the option wins."""
    name = option.name.replace("_", "-")
    for origin, values in layers:
        if name in values:
            return name, _shown(name, values[name]), origin
    return name, _shown(name, option.default), DEFAULT


def _shown(name: str, value: object) -> str:
    if value is None or value in ((), []):
        return "-"
    if name in SECRET:
        return "(set)"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
