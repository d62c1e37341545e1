"""What a client may say in `messages`."""

import pytest

from deskside.errors import InputError
from deskside.text.messages import Message, Role, read_messages
from deskside.text.tools import ToolCall

HI = {"role": "user", "content": "hi"}


def test_roles_and_parts() -> None:
    found = read_messages(
        [
            {"role": "developer", "content": [{"type": "text", "text": "a"}]},
            {"role": "user", "content": [{"type": "text", "text": t} for t in "bc"], "name": "x"},
            {"role": "assistant", "content": None, "tool_calls": [], "refusal": None},
            {"role": "user", "content": ""},
            {"role": "assistant", "content": "d", "prefix": True},
        ]
    )
    assert found == (
        Message(Role.SYSTEM, "a"),
        Message(Role.USER, "b\n\nc"),
        Message(Role.ASSISTANT, ""),
        Message(Role.USER, ""),
        Message(Role.ASSISTANT, "d", prefix=True),
    )


def test_calls_and_their_results() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    found = read_messages(
        [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r"}]},
            {"role": "tool", "content": "s"},
        ]
    )
    assert found == (
        Message(Role.ASSISTANT, "", calls=(ToolCall("f", '{"a": 1}', "c1"),)),
        Message(Role.TOOL, "r", answers="c1"),
        Message(Role.TOOL, "s"),
    )
    assert [message.characters for message in found] == [9, 1, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "why"},
        {"reasoning": "why"},
        {"reasoning_content": "why", "reasoning": "why"},
        {"reasoning_content": None, "reasoning": "why"},
    ],
)
def test_reasoning_under_both_names(fields: dict[str, object]) -> None:
    (found,) = read_messages([{"role": "assistant", "content": "so", **fields}])
    assert found == Message(Role.ASSISTANT, "so", "why")


def test_reasoning_is_an_assistants() -> None:
    (found,) = read_messages([{**HI, "reasoning": "why"}])
    assert found == Message(Role.USER, "hi")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, r"messages\[1\]\.role must be one of .*, got None"),
        ({"role": "robot", "content": ""}, r"messages\[1\]\.role must be one of .*'robot'"),
        ({"role": ["user"], "content": ""}, r"messages\[1\]\.role must be one of"),
        ({"role": "x" * 10**6, "content": ""}, r"messages\[1\]\.role must be one of"),
        ({"role": "user"}, r"messages\[1\]\.content must be text or a list .*, got none"),
        ({"role": "user", "content": 3}, r"messages\[1\]\.content must be text, got int"),
        ({"role": "user", "content": {"text": "a"}}, r"content must be text, got dict"),
        ({"role": "user", "content": ["a"]}, r"content\[0\]: must be a part of type text"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            r"messages\[1\]\.content\[1\]: must be a part of type text, got 'image_url'",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, r"content\[0\]\.text must be text"),
        ({"role": "user", "content": "a\ud800"}, r"messages\[1\]\.content is not valid UTF-8"),
        ({"role": "tool"}, r"messages\[1\]\.content must be text or a list"),
        ({"role": "tool", "content": "", "tool_call_id": 1}, r"tool_call_id must be text, got int"),
        ({"role": "assistant", "tool_calls": [{}]}, r"\[1\]\.tool_calls\[0\]\.function must be"),
        ({"role": "assistant", "function_call": {"name": "f"}}, r"function_call is the old form"),
        (
            {"role": "assistant", "content": "", "reasoning": "a", "reasoning_content": "b"},
            r"messages\[1\]: reasoning_content and reasoning differ",
        ),
        ({"role": "assistant", "content": "", "reasoning": []}, r"\.reasoning must be text"),
        ({"role": "user", "content": "", "prefix": True}, r"\[1\]\.prefix must be true or false"),
        ({"role": "assistant", "content": "", "prefix": 1}, r"\[1\]\.prefix must be true"),
    ],
)
def test_refusals_name_the_message(message: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_messages([HI, message])
    assert len(str(caught.value)) < 300


def test_a_conversation_that_is_none() -> None:
    with pytest.raises(InputError, match="at least one message"):
        read_messages([])
    open_turn = {"role": "assistant", "content": "", "prefix": True}
    with pytest.raises(InputError, match=r"messages\[0\]: prefix belongs to the last"):
        read_messages([open_turn, HI])
