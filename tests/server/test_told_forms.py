"""What a conversation lets the model be told of the form of its answer."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from deskside.server.openai.chat_fields import ChatFields
from deskside.text.chat import Prompt
from deskside.text.chat_options import ChatOptions
from deskside.text.messages import Message
from deskside.text.reasoning import END_OF_REASONING, Channel

SCHEMA = {"type": "object", "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


class Listening:
    """Stands where a service renders, and hears how."""

    options: ChatOptions
    tokenizer = SimpleNamespace(controls={END_OF_REASONING: 1})

    async def render(self, _said: Sequence[Message], options: ChatOptions, _size: int) -> Prompt:
        self.options = options
        return Prompt("", (0,), Channel.CONTENT)


def told(**fields: Any) -> object:
    said = [{"role": "user", "content": "x"}]
    talk = ChatFields.model_validate({"messages": said, **fields}).conversation()
    service = Listening()
    asyncio.run(talk.prompt(service))  # type: ignore[arg-type]
    return service.options.schema


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, SCHEMA),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "regex", "pattern": "a"}, None),
        ({"type": "text"}, None),
        (None, None),
    ],
)
def test_a_schema_is_told(form: object, schema: object) -> None:
    assert told(response_format=form) == schema
    if not isinstance(form, dict) or form["type"] != "regex":
        assert told(response_format=form, tools=TOOLS) == schema
    assert told(response_format=form, tools=TOOLS, tool_choice="required") is None
