"""A conversation as plain records, read from the JSON that clients send.

Owns which roles and contents are taken, and the refusals that name the message. Knows no format of
a prompt and no HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from deskside.errors import InputError
from deskside.text import utf8
from deskside.text.tools import ToolCall, read_calls

__all__ = ["PART_BREAK", "Message", "Role", "read_messages"]

PART_BREAK = "\n\n"
"""Stands between the text parts of one message, and between user messages in a row."""


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


ROLES = {**{str(role): role for role in Role}, "developer": Role.SYSTEM}
"""Roles by the names that clients use; OpenAI's `developer` is the former `system`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `reasoning` is what an assistant thought; `prefix` leaves its turn open.

    `calls` are an assistant's; `answers` is the id of the call whose result a tool's message has.
    """

    role: Role
    content: str
    reasoning: str = ""
    prefix: bool = False
    calls: tuple[ToolCall, ...] = ()
    answers: str = ""

    @property
    def characters(self) -> int:
        """About how long it is."""
        calls = sum(len(call.name) + len(call.arguments) for call in self.calls)
        return len(self.content) + len(self.reasoning) + calls


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
    if item.get("function_call"):
        raise InputError(f"{where}.function_call is the old form; send tool_calls")
    if not isinstance(name, str) or name not in ROLES:
        raise InputError(f"{where}.role must be one of {', '.join(ROLES)}, got {name!r:.60}")
    role = ROLES[name]
    content = item.get("content")
    if content is None and role is not Role.ASSISTANT:
        raise InputError(f"{where}.content must be text or a list of text parts, got none")
    prefix = item.get("prefix") or False
    if prefix is not False and (prefix is not True or role is not Role.ASSISTANT):
        raise InputError(f"{where}.prefix must be true or false, and true only for an assistant")
    text = _content(content, f"{where}.content")
    if role is Role.ASSISTANT:
        calls = read_calls(item.get("tool_calls"), f"{where}.tool_calls")
        return Message(role, text, _reasoning(item, where), prefix, calls)
    if role is Role.TOOL:
        return Message(
            role, text, answers=_text(item.get("tool_call_id") or "", f"{where}.tool_call_id")
        )
    return Message(role, text)


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
