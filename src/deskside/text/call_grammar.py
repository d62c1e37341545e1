"""The grammar of a block of calls, from the tools that may be called.

Owns what of a tool's schema can be kept in DSML's spelling: a text as it is where the schema says
no more than that, every other value as JSON. Parameters stand in the order of the schema, required
ones always, and none that it does not list. What it can't keep is refused by name.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deskside.errors import InputError
from deskside.text.formats import strict_formats
from deskside.text.grammar import INSIDE, check_length, library_grammar
from deskside.text.schema import check_patterns
from deskside.text.tools import DSML, OPEN, Tool

__all__ = ["answer_or_calls_grammar", "calls_grammar"]

END_VALUE = f"</{DSML}parameter>"
NOTES = frozenset(
    ("$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "title")
)
"""Keywords that ask for nothing."""
KEPT = NOTES | {
    "type", "properties", "required", "additionalProperties", "$defs", "definitions", "strict",
}  # fmt: skip


def calls_grammar(tools: Sequence[Tool], *, single: bool) -> str:
    """Return the grammar of a block of calls of some tools: one, or one and more.

    Raises:
        InputError: a tool's parameters can't be kept; names them.
    """
    return library_grammar("\n".join(("start: calls", *_calls(tools, single))))


def answer_or_calls_grammar(
    schema: Mapping[str, Any], tools: Sequence[Tool], *, single: bool
) -> str:
    """Return the grammar of a JSON text that a schema admits, or else a block of calls.

    Raises:
        InputError: the schema or a tool's parameters can't be kept; names them.
    """
    check_patterns(schema)  # first: it bounds the depth
    check_length(_json(schema))
    answer = f"start: answer | calls\nanswer: %json {_json(schema)}"
    return library_grammar("\n".join((answer, *_calls(tools, single))))


def _calls(tools: Sequence[Tool], single: bool) -> list[str]:
    check_length("".join(tool.line for tool in tools))
    names = [f"call_{number}" for number in range(len(tools))]
    block = "one" if single else "one (BREAK one)*"
    rules = [
        f"calls: {_text(f'{chr(10) * 2}{OPEN}{chr(10)}')} {block} BREAK "
        f"{_text(f'</{DSML}tool_calls>')}",
        f"one: {' | '.join(names)}",
        f"BREAK: {_text(chr(10))}",
        f"text[suffix={_text(END_VALUE)}]: /(?s:.*)/",
    ]
    for name, tool in zip(names, tools, strict=True):
        try:
            parameters, more = _parameters(name, tool.schema.get("parameters") or {})
        except InputError as error:
            raise InputError(f"tools: the parameters of {tool.name!r:.60}: {error}") from error
        begin = _text(f'<{DSML}invoke name="{tool.name}">\n')
        rules += [f"{name}: {begin} {parameters} {_text(f'</{DSML}invoke>')}", *more]
    return rules


def _parameters(name: str, schema: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return what stands between the tags of a call, and the rules that it names.

    Raises:
        InputError: the schema says what this grammar can't keep.
    """
    check_patterns(schema)
    beyond = sorted(set(schema) - KEPT)
    if beyond:
        raise InputError(f"{beyond[0]} is not supported beside properties where a call is forced")
    if schema.get("type", "object") != "object":
        raise InputError(f"type must be object, got {schema['type']!r:.40}")
    listed, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(listed, Mapping) or not isinstance(required, list):
        raise InputError("properties must be an object and required a list")
    parts: list[str] = []
    rules: list[str] = []
    for key in dict.fromkeys((*listed, *map(str, required))):
        rule = f"{name}_{len(parts)}"
        parts.append(rule if key in required else f"{rule}?")
        rules.append(f"{rule}: {_parameter(key, listed.get(key, {}), schema)}")
    return " ".join(parts) or "BREAK", rules  # the format leaves a line where there are none


def _parameter(key: str, schema: Any, root: Mapping[str, Any]) -> str:
    if not key or "\n" in key or DSML in key or '" string="' in key:
        raise InputError(f"a property cannot be called {key!r:.60}")
    schema = {} if schema is True else schema
    if not isinstance(schema, Mapping):
        raise InputError(f"the property {key!r:.60} admits nothing")
    begin = f'<{DSML}parameter name="{key}" string='
    said = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if set(schema) <= NOTES | {"type"} and schema.get("type") == "string":
        return f"{_text(f'{begin}{chr(34)}true{chr(34)}>')} text BREAK"
    if (
        set(schema) <= NOTES | {"type", "enum", "const"}
        and isinstance(said, list)
        and said
        and all(isinstance(one, str) and DSML not in one for one in said)
    ):
        texts = " | ".join(_text(f"{one}{END_VALUE}") for one in said)
        return f"{_text(f'{begin}{chr(34)}true{chr(34)}>')} ({texts}) BREAK"
    shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
    value = f"%json {_json({**shared, **schema})}"
    return f"{_text(f'{begin}{chr(34)}false{chr(34)}>')} {value} {_text(END_VALUE)} BREAK"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Mapping[str, Any]) -> str:
    return json.dumps({**strict_formats(schema), "x-guidance": dict(INSIDE)}, ensure_ascii=False)
