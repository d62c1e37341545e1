"""Formats of texts in JSON schemas that the library which follows grammars takes too lightly.

It admits the 29th of February in every year, leap seconds at any time, and addresses that are too
long; a validator does not. Owns the patterns that stand in their place, or beside them.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["strict_formats"]

LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
DATE = (
    "(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    f"|(?:0[13578]|1[02])-31)|{LEAP}-02-29)"
)
TIME = (
    "(?:[01][0-9]|2[0-3])(?::[0-5][0-9]){2}(?:\\.[0-9]+)?"
    "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
INSTEAD = {"date": f"^{DATE}$", "time": f"^{TIME}$", "date-time": f"^{DATE}[Tt]{TIME}$"}
"""Without leap seconds."""
BESIDE = {"email": "^[^@]{1,64}@[^@]{1,190}$"}
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by names that may be those of keywords."""
DATA = ("enum", "const", "default", "examples")
"""Keywords whose values are no schemas."""


def strict_formats(schema: Any) -> Any:
    """Return a schema, or a list of some, with patterns for what is taken too lightly."""
    if isinstance(schema, list):
        return [strict_formats(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: _value(key, value) for key, value in schema.items()}
    name = schema.get("format")
    if not isinstance(name, str) or name not in (*INSTEAD, *BESIDE):
        return made
    if name in INSTEAD:
        del made["format"]
    held = made.get("allOf")
    pattern = {"pattern": INSTEAD.get(name) or BESIDE[name]}
    return {**made, "allOf": [*(held if isinstance(held, list) else ()), pattern]}


def _value(key: str, value: Any) -> Any:
    if key in DATA:
        return value
    if key in NAMED and isinstance(value, Mapping):
        return {name: strict_formats(one) for name, one in value.items()}
    return strict_formats(value)
