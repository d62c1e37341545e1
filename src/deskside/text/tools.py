"""Tools: what a client offers, what an assistant called, and how both are written for the model.

Owns the records and DSML's spelling of calls. `｜DSML｜` is a control token, so a call is written
as plain texts between which the token stands: an argument that spells it stays text. Knows no
prompt around the calls, and not how generated calls are read (`text.tool_reader`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deskside.errors import InputError
from deskside.text import utf8

__all__ = [
    "DSML",
    "OPEN",
    "Offer",
    "Tool",
    "ToolCall",
    "offered",
    "read_calls",
    "read_tools",
    "written_calls",
]

DSML = "｜DSML｜"
OPEN = f"<{DSML}tool_calls>"
"""Begins a block of calls."""
MOST_TOOLS = 1024
LONGEST_NAME = 256
LONE_ARGUMENT = "arguments"
"""Name under which arguments stand that are no JSON object."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call: its name, and all that it is told of it."""

    name: str
    schema: Mapping[str, Any] = field(hash=False)

    @property
    def line(self) -> str:
        """The line that the model reads."""
        return json.dumps(self.schema, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call: the function, its arguments as the text of a JSON object, and the client's id."""

    name: str
    arguments: str
    id: str = ""


def read_tools(value: object, where: str = "tools") -> tuple[Tool, ...]:
    """Read OpenAI's list of tools; None and an empty list offer none.

    Raises:
        InputError: an entry is no function with a name, or a name stands twice; names the entry.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or len(value) > MOST_TOOLS:
        raise InputError(f"{where} must be a list of at most {MOST_TOOLS} tools")
    found = tuple(_tool(item, f"{where}[{place}]") for place, item in enumerate(value))
    names: set[str] = set()
    for place, tool in enumerate(found):
        if tool.name in names:
            raise InputError(f"{where}[{place}]: the name {tool.name!r:.60} stands twice")
        names.add(tool.name)
    return found


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools that the model is told of, and those of which it has to call one, if any."""

    tools: tuple[Tool, ...] = ()
    forced: tuple[Tool, ...] = ()


def offered(tools: tuple[Tool, ...], choice: object) -> Offer:
    """Return what a choice of tools comes to: auto, none, required, or one by its name.

    Raises:
        InputError: the choice is unknown, or asks for a tool that is not there.
    """
    if choice in (None, "auto"):
        return Offer(tools)
    if choice == "none":
        return Offer()
    if choice == "required":
        if not tools:
            raise InputError("tool_choice: required needs at least one tool in tools")
        return Offer(tools, tools)
    if not isinstance(choice, Mapping) or choice.get("type") not in ("function", "custom", "tool"):
        told = f"got {choice!r:.60}"
        raise InputError(f"tool_choice must be auto, none, required or name a function, {told}")
    inner = choice.get(choice["type"], choice)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    named = tuple(tool for tool in tools if tool.name == name)
    if not named:
        raise InputError(f"tool_choice: there is no tool {name!r:.60} in tools")
    return Offer(tools, named)


def read_calls(value: object, where: str) -> tuple[ToolCall, ...]:
    """Read the `tool_calls` of an assistant's message.

    Raises:
        InputError: an entry is no call of a function; names it.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InputError(f"{where} must be a list, got {type(value).__name__}")
    return tuple(_call(item, f"{where}[{place}]") for place, item in enumerate(value))


def written_calls(calls: Sequence[ToolCall]) -> Iterator[str]:
    """Yield the texts of a block of calls; between each two of them stands the control token."""
    text = "\n\n<"
    yield text
    text = "tool_calls>\n"
    for place, call in enumerate(calls):
        yield f"{text}{chr(10) if place else ''}<"
        text = f'invoke name="{call.name}">\n'
        for number, (key, value) in enumerate(_arguments(call.arguments).items()):
            yield f"{text}{chr(10) if number else ''}<"
            literal = isinstance(value, str)
            said = value if literal else json.dumps(value, ensure_ascii=False)
            yield f'parameter name="{key}" string="{str(literal).lower()}">{said}</'
            text = "parameter>"
        yield f"{text}\n</"
        text = "invoke>"
    yield f"{text}\n</"
    yield "tool_calls>"


def _arguments(text: str) -> Mapping[str, Any]:
    """Return the arguments by name; what is no JSON object is one argument of its own."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {LONE_ARGUMENT: text}
    return value if isinstance(value, dict) else {LONE_ARGUMENT: text}


def _tool(item: object, where: str) -> Tool:
    kind = item.get("type", "function") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or kind != "function":
        raise InputError(f"{where}.type must be function, got {kind!r:.60}")
    function = item.get("function")
    if not isinstance(function, Mapping):
        raise InputError(f"{where}.function must be an object")
    name = _name(function.get("name"), f"{where}.function.name")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InputError(f"{where}.function.parameters must be an object")
    tool = Tool(name, function)
    utf8.to_bytes(tool.line, f"{where}.function")
    return tool


def _call(item: object, where: str) -> ToolCall:
    function = item.get("function") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(function, Mapping):
        raise InputError(f"{where}.function must be an object")
    arguments = function.get("arguments", "")
    name, given = function.get("name"), item.get("id")
    if not isinstance(arguments, str):
        raise InputError(f"{where}.function.arguments must be text, got {type(arguments).__name__}")
    if given is not None and not isinstance(given, str):
        raise InputError(f"{where}.id must be text, got {type(given).__name__}")
    utf8.to_bytes(arguments, f"{where}.function.arguments")
    return ToolCall(_name(name, f"{where}.function.name"), arguments or "{}", given or "")


def _name(value: object, where: str) -> str:
    """Return a name that fits between the quotation marks of a tag."""
    if not isinstance(value, str) or not value or len(value) > LONGEST_NAME:
        raise InputError(f"{where} must be text of 1 to {LONGEST_NAME} characters")
    utf8.to_bytes(value, where)
    if '"' in value or "\n" in value or DSML in value:
        raise InputError(f"{where} must have no quotation mark, newline or {DSML}")
    return value
