"""A conversation as plain records, read from the JSON that clients send.

Owns which roles and contents are taken, and the refusals that name the message. Knows no format of
a prompt and no HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from deskside.errors import InputError
from deskside.text import utf8

__all__ = ["PART_BREAK", "Message", "Role", "read_messages"]

PART_BREAK = "\n\n"
"""Stands between the text parts of one message, and between user messages in a row."""


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


ROLES = {**{str(role): role for role in Role}, "developer": Role.SYSTEM}
"""Roles by the names that clients use; OpenAI's `developer` is the former `system`."""
TOOL_FIELDS = ("tool_calls", "function_call", "tool_call_id")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `reasoning` is what an assistant thought; `prefix` leaves its turn open."""

    role: Role
    content: str
    reasoning: str = ""
    prefix: bool = False


def read_messages(items: Sequence[Mapping[str, object]]) -> tuple[Message, ...]:
    """Read the `messages` of a request; fields that say nothing about the prompt are ignored.

    Raises:
        InputError: there is none, or one has a role, a type or a part that cannot be encoded; the
            message names it, as in `messages[2].content`.
    """
    if not items:
        raise InputError("messages must hold at least one message")
    found = tuple(_read(item, f"messages[{place}]") for place, item in enumerate(items))
    for place, message in enumerate(found[:-1]):
        if message.prefix:
            raise InputError(f"messages[{place}]: prefix belongs to the last message alone")
    return found


def _read(item: Mapping[str, object], where: str) -> Message:
    name = item.get("role")
    if name == "tool" or any(item.get(field) for field in TOOL_FIELDS):
        raise InputError(f"{where}: tools are not in this version; send text alone")
    if not isinstance(name, str) or name not in ROLES:
        raise InputError(f"{where}.role must be one of {', '.join(ROLES)}, got {name!r:.60}")
    role = ROLES[name]
    content = item.get("content")
    if content is None and role is not Role.ASSISTANT:
        raise InputError(f"{where}.content must be text or a list of text parts, got none")
    prefix = item.get("prefix") or False
    if prefix is not False and (prefix is not True or role is not Role.ASSISTANT):
        raise InputError(f"{where}.prefix must be true or false, and true only for an assistant")
    reasoning = _reasoning(item, where) if role is Role.ASSISTANT else ""
    return Message(role, _content(content, f"{where}.content"), reasoning, prefix)


def _reasoning(item: Mapping[str, object], where: str) -> str:
    """Return the thought of an assistant's turn under either of its two names."""
    names = ("reasoning_content", "reasoning")
    given = [_text(item[name], f"{where}.{name}") for name in names if item.get(name) is not None]
    if len(set(given)) > 1:
        raise InputError(f"{where}: reasoning_content and reasoning differ; send one of them")
    return given[0] if given else ""


def _content(value: object, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, list | tuple):
        return _text(value, where)
    return PART_BREAK.join(_part(part, f"{where}[{n}]") for n, part in enumerate(value))


def _part(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind != "text":
        raise InputError(f"{where}: must be a part of type text, got {kind!r:.60}")
    return _text(part.get("text"), f"{where}.text")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} must be text, got {type(value).__name__}")
    utf8.to_bytes(value, where)
    return value
