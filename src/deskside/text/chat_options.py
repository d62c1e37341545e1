"""How a conversation is to be continued, and the fields of a request that say so.

Owns the names under which clients ask for thinking and effort, and which of them wins. Knows no
prompt.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deskside.errors import InputError
from deskside.text.tools import Tool

__all__ = ["ChatOptions", "read_budget", "read_options"]

EFFORTS = {
    "none": None,
    "minimal": "low",
    "low": "low",
    "medium": "low",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
"""The checkpoint's effort for each name that clients use; none is no thinking at all."""
THINKING = {"enabled": True, "disabled": False}
TEMPLATE = ("thinking", "enable_thinking", "reasoning_effort", "drop_thinking")
"""What `chat_template_kwargs` may say; the names are those of other servers."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a conversation is to be continued.

    Attributes:
        thinking: whether the model reasons before it answers. None is yes where there is an
            effort, else the checkpoint's default.
        effort: how much, by a name that the checkpoint knows; None is its default.
        keep_reasoning: whether the reasoning of earlier turns stays in the prompt.
        tools: what the model may call; with any, the reasoning of earlier turns stays.
        schema: what an answer has to be, told where the checkpoint has a text for it.
    """

    thinking: bool | None = None
    effort: str | None = None
    keep_reasoning: bool = False
    tools: tuple[Tool, ...] = ()
    schema: Mapping[str, Any] | None = field(default=None, hash=False)


def read_options(
    reasoning_effort: object = None, thinking: object = None, chat_template_kwargs: object = None
) -> ChatOptions:
    """Read the fields of a request by their own names; None is a field that is not there.

    Whether to think is said by the first that is there: `thinking`, the template's `thinking` or
    `enable_thinking`, an effort of none. The effort is `reasoning_effort`, else the template's.

    Raises:
        InputError: a field has another type or an unknown value; the message names it.
    """
    template = _template(chat_template_kwargs)
    name = reasoning_effort if reasoning_effort is not None else template.get("reasoning_effort")
    where = "reasoning_effort" if reasoning_effort is not None else _inside("reasoning_effort")
    effort = None if name is None else _effort(name, where)
    said = (
        _type(thinking),
        _switch(template, "thinking"),
        _switch(template, "enable_thinking"),
        False if name == "none" else None,
    )
    thinks = next((word for word in said if word is not None), None)
    return ChatOptions(thinks, effort, _switch(template, "drop_thinking") is False)


def _effort(name: object, where: str) -> str | None:
    if not isinstance(name, str) or name not in EFFORTS:
        raise InputError(f"{where} must be one of {', '.join(EFFORTS)}, got {name!r:.60}")
    return EFFORTS[name]


def _type(thinking: object) -> bool | None:
    if thinking is None:
        return None
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if not isinstance(thinking, Mapping) or not isinstance(kind, str) or kind not in THINKING:
        raise InputError(f"thinking.type must be enabled or disabled, got {kind!r:.60}")
    others = [str(key) for key in thinking if key not in ("type", "budget_tokens")]
    if others:
        raise InputError(f"thinking may hold type and budget_tokens, got {others[0]!r:.60}")
    return THINKING[kind]


def read_budget(thinking: Mapping[str, object] | None, budget: int | None = None) -> int | None:
    """Return the most tokens of a thought that a request asks for, under either of its two names.

    Raises:
        InputError: it is no positive number, or the names differ.
    """
    said = None if thinking is None else thinking.get("budget_tokens")
    if said is None:
        return budget
    if isinstance(said, bool) or not isinstance(said, int) or said < 1:
        raise InputError(f"thinking.budget_tokens must be a whole number from 1, got {said!r:.60}")
    if budget is not None and budget != said:
        raise InputError("thinking_budget and thinking.budget_tokens differ; send one of them")
    return said


def _template(value: object) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"chat_template_kwargs must be an object, got {type(value).__name__}")
    for key in value:
        if key not in TEMPLATE:
            known = ", ".join(TEMPLATE)
            raise InputError(f"chat_template_kwargs may hold {known}, got {key!r:.60}")
    return value


def _switch(template: Mapping[str, object], key: str) -> bool | None:
    value = template.get(key)
    if value is not None and not isinstance(value, bool):
        raise InputError(f"{_inside(key)} must be true or false, got {value!r:.60}")
    return value


def _inside(key: str) -> str:
    return f"chat_template_kwargs.{key}"
