"""The form that a client wants an answer in, by the fields of the three APIs.

Owns the names and the refusals. The form of a raw completion and of a conversation is the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deskside.errors import InputError
from deskside.text import utf8
from deskside.text.grammar import json_grammar, lark_grammar, regex_grammar

__all__ = ["AnswerForm", "read_format"]

TYPES = ("text", "json_object", "json_schema", "regex", "grammar")
TEXTS = {"regex": "pattern", "grammar": "grammar"}
"""Types whose form is a text, and the field that has it."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer has to be: a grammar and, of JSON, the schema that it was made of.

    `field` is where it was asked for.
    """

    grammar: str
    schema: Mapping[str, Any] | None
    field: str


def read_format(value: object, field: str = "response_format") -> AnswerForm | None:
    """Read the field that asks for a form; None where any text will do.

    Raises:
        InputError: the type is unknown, or what it needs is missing or too long; names the field.
    """
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or kind not in TYPES:
        raise InputError(f"{field}.type must be one of {', '.join(TYPES)}, got {kind!r:.60}")
    if kind == "text":
        return None
    if kind in TEXTS:
        return _of_text(kind, value.get(TEXTS[kind]), field)
    schema = {"type": "object"} if kind == "json_object" else _schema(value, field)
    try:
        return AnswerForm(json_grammar(schema), schema, field)
    except InputError as error:
        raise InputError(f"{field}: {error}") from error


def _of_text(kind: str, text: object, field: str) -> AnswerForm:
    if not isinstance(text, str) or not text:
        raise InputError(f"{field}.{TEXTS[kind]} must be a text")
    utf8.to_bytes(text, f"{field}.{TEXTS[kind]}")
    try:
        found = regex_grammar(text) if kind == "regex" else lark_grammar(text)
    except InputError as error:
        raise InputError(f"{field}: {error}") from error
    return AnswerForm(found, None, field)


def _schema(value: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return the schema: inside `json_schema` as chat has it, or beside the type as others do."""
    inner = value.get("json_schema", value)
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if not isinstance(schema, Mapping):
        raise InputError(f"{field}: json_schema needs a schema, which must be an object")
    return schema
