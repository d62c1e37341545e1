"""The TOML file of `--config`: which options it may hold, and how their values are spelled."""

from collections.abc import Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any, TypeAlias, get_origin

from deskside.config.commands import ClientOptions, ModelOptions, SamplingOptions
from deskside.config.engine import EngineOptions
from deskside.config.option import key_of, options_of
from deskside.config.server import ServerOptions
from deskside.errors import InputError

__all__ = ["FILE_RECORDS", "Values", "option_fields", "read_file"]

Values: TypeAlias = Mapping[str, str | list[str]]
"""Values as they are spelled outside, by flag name without the dashes."""

FILE_RECORDS = (ModelOptions, EngineOptions, SamplingOptions, ServerOptions, ClientOptions)


def option_fields() -> list[Field[Any]]:
    """Return every option that a file may hold, each name once."""
    return list({option.name: option for option in options_of(FILE_RECORDS)}.values())


def read_file(path: Path) -> Values:
    """Read the options of a TOML file.

    Raises:
        InputError: it cannot be read, is not TOML, or holds a key that is no option.
    """
    import tomllib  # only where a file is named: `--help` must answer at once

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--config {path}: is not TOML ({error!s:.80})") from error
    known = {key_of(option): option for option in option_fields()}
    for key in table:
        if key not in known:
            raise InputError(f"--config {path}: {key!r:.60} is none of {', '.join(known)}")
    return {key: _spelled(path, known[key], value) for key, value in table.items()}


def _spelled(path: Path, option: Field[Any], value: object) -> str | list[str]:
    """Return a value as a flag spells it, if its kind is the option's."""
    if option.type is bool:
        if isinstance(value, bool):
            return str(value).lower()
        kind = "true or false"
    elif get_origin(option.type) is tuple:
        if isinstance(value, str):
            return [value]
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        kind = "text, or a list of texts"
    else:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return str(value)
        kind = "a number or text"
    raise InputError(f"--config {path}: {key_of(option)} must be {kind}, got {value!r:.60}")
