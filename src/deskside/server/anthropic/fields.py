"""What a client of Anthropic's API may send, as a conversation.

Owns the fields, the kinds of blocks, and the refusals that name them. Fields that are not known are
ignored with a line in the log, but what would change the answer and is not served is refused.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from deskside.errors import InputError
from deskside.server import faults
from deskside.server.conversation import Conversation
from deskside.server.faults import Fault
from deskside.server.openai.fields import Objects, SamplingFields, Stop
from deskside.text import utf8
from deskside.text.chat_options import ChatOptions, read_budget, read_options
from deskside.text.messages import PART_BREAK, Message, Role
from deskside.text.response_format import AnswerForm, read_format
from deskside.text.tools import Offer, Tool, ToolCall, offered, read_calls, read_tools

__all__ = ["CountFields", "MessagesFields"]

MOST_MESSAGES = 10_000
MOST_STOPS = 64
UNSERVED: Mapping[str, tuple[Any, ...]] = {
    "mcp_servers": (None, []),
}
"""What would change the answer and is not served, with the values that ask for nothing."""
THINKS = {"enabled": True, "adaptive": True, "disabled": False}
CHOICES = {"auto": "auto", "none": "none", "any": "required"}
Block = Mapping[str, Any]

log = logging.getLogger("deskside.requests")


class CountFields(BaseModel):
    """A conversation."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str = Field(max_length=512)
    messages: Objects = Field(min_length=1, max_length=MOST_MESSAGES)
    system: str | Objects | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    tools: Objects | None = None
    tool_choice: dict[str, Any] | None = None

    def check_fields(self) -> None:
        """Refuse what cannot be obeyed, and log what is not looked at.

        Raises:
            Fault: names the field.
        """
        extra = dict(self.model_extra or {})
        for name, nothing in UNSERVED.items():
            if extra.pop(name, None) not in nothing:
                field = name.partition(".")[0]
                raise faults.bad_request(f"{name} is not supported by this version", field)
        if extra:
            log.info("fields that are not looked at: %s", repr(sorted(extra))[:200])

    def said(self) -> tuple[Message, ...]:
        """Return the conversation.

        Raises:
            InputError: something in it cannot be encoded; names its place first.
        """
        found = [message for message in [_system(self.system)] if message.content]
        last = len(self.messages) - 1
        for place, item in enumerate(self.messages):
            found += _read(item, f"messages[{place}]", last=place == last)
        return tuple(found)

    def offer(self) -> Offer:
        """Return what may and what has to be called.

        Raises:
            InputError: the choice is unknown, or names no tool that is there.
        """
        return offered(_tools(self.tools), _choice(self.tool_choice))

    def options(self) -> ChatOptions:
        """Return how the conversation is to be continued: without a word about it, no thinking.

        Raises:
            InputError: a field has an unknown value; its name comes first.
        """
        kind = "disabled" if self.thinking is None else self.thinking.get("type")
        if not isinstance(kind, str) or kind not in THINKS:
            raise InputError(f"thinking.type must be one of {', '.join(THINKS)}, got {kind!r:.60}")
        effort = (self.output_config or {}).get("effort")
        try:
            found = read_options(effort)
        except InputError as error:
            raise InputError(f"output_config.effort: {error}") from error
        tools = self.offer().tools
        return ChatOptions(THINKS[kind], found.effort, tools=tools)

    def conversation(self) -> Conversation:
        """Return what was said; nothing says how to go on.

        Raises:
            InputError: a field has an unknown value; its name comes first.
        """
        return Conversation(self.said(), self.options(), SamplingFields.model_validate({}))

    def refusal(self, error: InputError) -> Fault:
        """Return the fault for a conversation that cannot be, with the field that it names."""
        named = faults.field_of(str(error), type(self).model_fields, "messages")
        return faults.of_input(error, named)


class MessagesFields(CountFields):
    """A request to answer a conversation."""

    max_tokens: int = Field(ge=1)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    output_format: dict[str, Any] | None = None
    stop_sequences: Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None

    def conversation(self) -> Conversation:
        """Return what was said, and how to go on.

        Raises:
            InputError: a field has an unknown value; its name comes first.
        """
        sampling = SamplingFields.model_validate(
            {
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "stop": self.stop_sequences,
            }
        )
        single = (self.tool_choice or {}).get("disable_parallel_tool_use") is True
        return Conversation(
            self.said(),
            self.options(),
            sampling,
            self.max_tokens,
            parallel=not single,
            budget=read_budget(self.thinking),
            budget_field="thinking",
            forced=self.offer().forced,
            form=self._form(),
        )

    def _form(self) -> AnswerForm | None:
        """Return the form of the answer, by its present name or the one that it had before."""
        if self.output_format is not None:
            return read_format(self.output_format, "output_format")
        return read_format((self.output_config or {}).get("format"), "output_config.format")


def _system(value: str | Sequence[Block] | None) -> Message:
    return Message(Role.SYSTEM, _texts(value or "", "system"))


def _read(item: Block, where: str, *, last: bool) -> Iterator[Message]:
    """Yield what one message comes to: results of tools are messages of their own."""
    role = item.get("role")
    blocks = _blocks(item.get("content"), f"{where}.content")
    if role == "assistant":
        yield _assistant(blocks, where, last=last)
    elif role in ("user", "system"):
        yield from _others(blocks, Role(role), where)
    else:
        raise InputError(f"{where}.role must be user, assistant or system, got {role!r:.60}")


def _assistant(blocks: Sequence[Block], where: str, *, last: bool) -> Message:
    """Return an assistant's turn; where it is the last message, the answer goes on with it."""
    texts, thoughts, calls = [], [], []
    for place, block in enumerate(blocks):
        at = f"{where}.content[{place}]"
        match block.get("type"):
            case "text":
                texts.append(_text(block.get("text"), f"{at}.text"))
            case "thinking":
                thoughts.append(_text(block.get("thinking"), f"{at}.thinking"))
            case "redacted_thinking":
                pass  # another service's secret
            case "tool_use":
                calls.append(_call(block, at))
            case kind:
                raise _unknown(at, kind)
    return Message(
        Role.ASSISTANT,
        PART_BREAK.join(texts),
        PART_BREAK.join(thoughts),
        prefix=last and not calls,
        calls=tuple(calls),
    )


def _others(blocks: Sequence[Block], role: Role, where: str) -> Iterator[Message]:
    texts: list[str] = []
    for place, block in enumerate(blocks):
        at = f"{where}.content[{place}]"
        match block.get("type"):
            case "text":
                texts.append(_text(block.get("text"), f"{at}.text"))
            case "tool_result" if role is Role.USER:
                if texts:
                    yield Message(role, PART_BREAK.join(texts))
                    texts = []
                answers = _text(block.get("tool_use_id"), f"{at}.tool_use_id")
                said = _texts(block.get("content") or "", f"{at}.content")
                yield Message(Role.TOOL, said, answers=answers)
            case kind:
                raise _unknown(at, kind)
    if texts or not blocks:
        yield Message(role, PART_BREAK.join(texts))


def _unknown(where: str, kind: object) -> InputError:
    if kind in ("image", "document"):
        return InputError(f"{where}: this model reads no {kind}; send text alone")
    return InputError(f"{where}.type: a block of type {kind!r:.60} is not supported here")


def _call(block: Block, where: str) -> ToolCall:
    given = block.get("input", {})
    if not isinstance(given, Mapping):
        raise InputError(f"{where}.input must be an object")
    function = {"name": block.get("name"), "arguments": json.dumps(given, ensure_ascii=False)}
    return read_calls([{"id": block.get("id"), "function": function}], where)[0]


def _tools(items: Sequence[Block] | None) -> tuple[Tool, ...]:
    """Read the tools of this API as those of the other."""
    found = []
    for place, item in enumerate(items or ()):
        kind = item.get("type") or "custom"
        if kind != "custom":
            raise InputError(f"tools[{place}].type: {kind!r:.60} is not supported; send custom")
        function = {key: item[key] for key in ("name", "description") if item.get(key) is not None}
        schema = item.get("input_schema")
        if not isinstance(schema, Mapping):
            raise InputError(f"tools[{place}].input_schema must be an object")
        found.append({"function": {**function, "parameters": schema}})
    return read_tools(found)


def _choice(value: Block | None) -> object:
    if value is None:
        return "auto"
    kind = value.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": value.get("name")}}
    if not isinstance(kind, str) or kind not in CHOICES:
        raise InputError(f"tool_choice.type must be auto, any, tool or none, got {kind!r:.60}")
    return CHOICES[kind]


def _blocks(value: object, where: str) -> Sequence[Block]:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list) or not all(isinstance(block, Mapping) for block in value):
        raise InputError(f"{where} must be text or a list of blocks")
    return value


def _texts(value: object, where: str) -> str:
    """Return a text, or the texts of a list of blocks of text."""
    texts = []
    for place, block in enumerate(_blocks(value, where)):
        if block.get("type") != "text":
            raise _unknown(f"{where}[{place}]", block.get("type"))
        texts.append(_text(block.get("text"), f"{where}[{place}].text"))
    return PART_BREAK.join(texts)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} must be text, got {type(value).__name__}")
    utf8.to_bytes(value, where)
    return value
