"""One option: a field of a frozen record, with its default and what is told of it.

A field's name gives the flag (`kv_tokens`: `--kv-tokens`), the variable (`DESKSIDE_KV_TOKENS`) and
the key in the file (`kv-tokens`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any

from deskside.errors import InputError

__all__ = ["check_choice", "check_count", "flag_of", "key_of", "options_of", "told"]


def told(text: str) -> Mapping[str, str]:
    """Return the metadata of an option that help explains by this text."""
    return {"help": text}


def flag_of(name: str) -> str:
    """Return the flag of an option."""
    return "--" + name.replace("_", "-")


def key_of(option: Field[Any]) -> str:
    """Return an option's key in the file."""
    return option.name.replace("_", "-")


def options_of(records: Iterable[type]) -> list[Field[Any]]:
    """Return the options of some records, one after the other."""
    return [option for record in records for option in fields(record)]


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise an InputError that names the option unless its value is one of these."""
    if value not in choices:
        needs = f"{flag_of(name)} must be one of {', '.join(choices)}, got {value!r:.60}"
        raise InputError(needs)


def check_count(name: str, value: object) -> None:
    """Raise an InputError that names the option unless its value is a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{flag_of(name)} must be a whole number from 1, got {value!r:.60}")
