"""The items of a response's input, as a conversation.

Owns which kinds of items are taken and how an assistant's items make one turn: its thought, its
text and its calls are items of their own. Nothing is stored here, so an item that only names
another cannot be taken.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deskside.errors import InputError
from deskside.text import utf8
from deskside.text.messages import PART_BREAK, Message, Role
from deskside.text.tools import ToolCall, read_calls

__all__ = ["CUSTOM_INPUT", "full_name", "read_input", "sealed"]

Item = Mapping[str, Any]

CUSTOM_INPUT = "input"
"""Argument under which the text of a custom call stands."""
TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER}


@dataclass(slots=True)
class _Turn:
    """An assistant's items in a row."""

    thoughts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message:
        return Message(
            Role.ASSISTANT,
            PART_BREAK.join(self.texts),
            PART_BREAK.join(self.thoughts),
            calls=tuple(self.calls),
        )


def read_input(items: str | Sequence[Item]) -> tuple[Message, ...]:
    """Read the `input` of a request.

    Raises:
        InputError: an item cannot be encoded; the message names it, as in `input[2].content`.
    """
    if isinstance(items, str):
        utf8.to_bytes(items, "input")
        return (Message(Role.USER, items),)
    found: list[Message] = []
    turn: _Turn | None = None
    for place, item in enumerate(items):
        where = f"input[{place}]"
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind in ("reasoning", "function_call", "custom_tool_call") or (
            kind == "message" and item.get("role") == "assistant"
        ):
            if turn is not None and kind == "reasoning" and (turn.texts or turn.calls):
                found.append(turn.message())
                turn = None
            turn = turn or _Turn()
            _add(turn, kind, item, where)
            continue
        if turn is not None:
            found.append(turn.message())
            turn = None
        found.append(_other(kind, item, where))
    return (*found, turn.message()) if turn is not None else tuple(found)


def full_name(space: object, name: object) -> object:
    """Return the name by which the model knows a function of a namespace, or of none."""
    both = isinstance(space, str) and isinstance(name, str) and space
    return f"{space}.{name}" if both else name


def sealed(thought: str) -> str:
    """Return a thought for clients that keep what they cannot read, and send it back."""
    return base64.b64encode(thought.encode()).decode()


def _add(turn: _Turn, kind: str, item: Item, where: str) -> None:
    """Add an assistant's item to its turn."""
    if kind == "message":
        turn.texts.append(_texts(item.get("content"), f"{where}.content"))
    elif kind == "reasoning":
        turn.thoughts.append(_thought(item, where))
    else:
        turn.calls.append(_call(kind, item, where))


def _other(kind: object, item: Item, where: str) -> Message:
    if kind == "message":
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            names = ", ".join([*ROLES, "assistant"])
            raise InputError(f"{where}.role must be one of {names}, got {role!r:.60}")
        return Message(ROLES[role], _texts(item.get("content"), f"{where}.content"))
    if kind in ("function_call_output", "custom_tool_call_output"):
        answers = _text(item.get("call_id"), f"{where}.call_id")
        return Message(Role.TOOL, _texts(item.get("output"), f"{where}.output"), answers=answers)
    if kind == "item_reference":
        raise InputError(f"{where}: nothing is stored here; send the item itself")
    raise InputError(f"{where}.type: an item of type {kind!r:.60} is not supported here")


def _call(kind: str, item: Item, where: str) -> ToolCall:
    arguments = item.get("arguments", "")
    if kind == "custom_tool_call":
        said = _text(item.get("input"), f"{where}.input")
        arguments = json.dumps({CUSTOM_INPUT: said}, ensure_ascii=False)
    name = full_name(item.get("namespace"), item.get("name"))
    function = {"name": name, "arguments": arguments}
    return read_calls([{"id": item.get("call_id"), "function": function}], where)[0]


def _thought(item: Item, where: str) -> str:
    """Return a thought as it was, else its summary; what another service sealed is nothing."""
    for name in ("content", "encrypted_content", "summary"):
        value = item.get(name)
        if not value:
            continue
        if name != "encrypted_content":
            return _texts(value, f"{where}.{name}")
        opened = _opened(_text(value, f"{where}.{name}"))
        if opened:
            return opened
    return ""


def _opened(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _texts(value: object, where: str) -> str:
    if isinstance(value, str):
        return _text(value, where)
    if not isinstance(value, list):
        raise InputError(f"{where} must be text or a list of parts, got {type(value).__name__}")
    return PART_BREAK.join(_part(part, f"{where}[{place}]") for place, part in enumerate(value))


def _part(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in (*TEXT_PARTS, "refusal"):
        if kind in ("input_image", "input_file", "input_audio"):
            raise InputError(f"{where}: this model reads text alone, got {kind}")
        raise InputError(f"{where}.type must be a part of text, got {kind!r:.60}")
    name = "refusal" if kind == "refusal" else "text"
    return _text(part.get(name), f"{where}.{name}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} must be text, got {type(value).__name__}")
    utf8.to_bytes(value, where)
    return value
