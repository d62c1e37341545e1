"""Answers in a form, and calls that are forced, over loopback with the model that ships."""

import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema_rs
import openai
import pytest

from tests.server.rig import Server, serving

MODEL = "deskside-mini"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["name", "size", "kind"],
    "additionalProperties": False,
}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "note": {"type": "string", "maxLength": 8},
    },
    "required": ["unit", "days"],
}
NAMES = ("look", "wait")
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES
]
FLAT: Any = [{"type": "function", "name": name, "parameters": PARAMETERS} for name in NAMES]
ANTHROPIC: Any = [{"name": name, "input_schema": PARAMETERS} for name in NAMES]
SAID: Any = [{"role": "user", "content": "def f(x):"}]
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
}
MOST = 400


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--kv-tokens", "8192", scripted=False) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(api_key="x", base_url=f"{server.url}/v1", max_retries=0)


@pytest.fixture(scope="module")
def messages(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="x", base_url=server.url, max_retries=0)


def valid(text: str | None, schema: dict[str, Any] = SCHEMA) -> bool:
    return jsonschema_rs.is_valid(schema, json.loads(text or ""))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("thinking", [False, True])
def test_an_answer_of_a_chat_keeps_its_schema(
    client: openai.OpenAI, temperature: float, thinking: bool
) -> None:
    extra: Any = {"thinking": {"type": "enabled"}, "thinking_budget": 9} if thinking else {}
    fields: Any = {
        "model": MODEL,
        "messages": SAID,
        "response_format": FORMAT,
        "max_tokens": MOST,
        "temperature": temperature,
        "seed": 4,
        "extra_body": extra,
    }
    done = client.chat.completions.create(**fields, logprobs=True)
    (choice,) = done.choices
    assert choice.finish_reason == "stop"
    assert valid(choice.message.content)
    thought = getattr(choice.message, "reasoning_content", None)
    assert bool(thought) is thinking
    assert choice.logprobs is not None
    assert len(choice.logprobs.content or ()) == done.usage.completion_tokens  # type: ignore[union-attr]
    parts = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(**fields, stream=True)
    ]
    assert "".join(parts) == choice.message.content


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"type": "regex", "pattern": "[a-c]{3}-[0-9]{2}"}, "[a-c]{3}-[0-9]{2}"),
        ({"type": "grammar", "grammar": 'start: "<" WORD ">"\nWORD: /[a-z]{1,5}/'}, "<[a-z]{1,5}>"),
    ],
)
def test_an_answer_in_another_form(server: Server, form: Any, pattern: str) -> None:
    for path, fields, read in (
        ("/v1/chat/completions", {"messages": SAID}, lambda one: one["message"]["content"]),
        ("/v1/completions", {"prompt": "x = "}, lambda one: one["text"]),
    ):
        body = {**fields, "response_format": form, "max_tokens": 60, "temperature": 1, "n": 2}
        answer = server.post(path, body).json()
        for choice in answer["choices"]:
            assert re.fullmatch(pattern, read(choice)), choice


def test_the_form_of_a_response_and_of_a_message(
    client: openai.OpenAI, messages: anthropic.Anthropic
) -> None:
    form: Any = {"type": "json_schema", "name": "n", "schema": SCHEMA}
    response = client.responses.create(
        model=MODEL, input="hi", text={"format": form}, max_output_tokens=MOST
    )
    assert response.status == "completed"
    assert valid(response.output_text)
    message = messages.messages.create(
        model=MODEL, max_tokens=MOST, messages=SAID, extra_body={"output_config": {"format": form}}
    )
    assert message.stop_reason == "end_turn"
    assert valid(message.content[0].text)  # type: ignore[union-attr]


def fits(name: str, arguments: Any, names: tuple[str, ...] = NAMES) -> bool:
    return name in names and jsonschema_rs.is_valid(PARAMETERS, arguments)


CHOICES: Any = [
    ("required", NAMES),
    ({"type": "function", "function": {"name": "wait"}}, ("wait",)),
]


@pytest.mark.parametrize(("choice", "names"), CHOICES)
@pytest.mark.parametrize("thinking", [False, True])
def test_a_chat_is_forced_to_one_call(
    client: openai.OpenAI, choice: Any, names: tuple[str, ...], thinking: bool
) -> None:
    fields: Any = {
        "model": MODEL,
        "messages": SAID,
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": MOST,
        "temperature": 0.7,
        "seed": 2,
        "extra_body": {"thinking": {"type": "enabled"}} if thinking else {},
    }
    done = client.chat.completions.create(**fields).choices[0]
    assert done.finish_reason == "tool_calls"
    assert done.message.content is None
    (call,) = done.message.tool_calls or ()
    assert call.type == "function"
    assert fits(call.function.name, json.loads(call.function.arguments), names)
    chunks = list(client.chat.completions.create(**fields, stream=True))
    (streamed,) = [one for c in chunks for one in c.choices[0].delta.tool_calls or ()]
    assert streamed.function is not None
    assert streamed.function.arguments == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_a_forced_call_may_come_behind_a_thought_with_a_budget(server: Server) -> None:
    body = {
        "messages": SAID, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False,
        "thinking": {"type": "enabled"}, "thinking_budget": 7, "max_tokens": MOST,
    }  # fmt: skip
    done = server.post("/v1/chat/completions", body).json()
    (choice,) = done["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"]
    assert done["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 8
    shown = [
        server.post("/render", {**body, "thinking_budget": budget}).json()["prompt"]
        for budget in (7, None)
    ]
    assert shown[1] == shown[0] + "</think>"


@pytest.mark.parametrize(
    ("choice", "names"), [("required", NAMES), ({"type": "function", "name": "look"}, ("look",))]
)
def test_a_response_is_forced_to_one_call(
    client: openai.OpenAI, choice: Any, names: tuple[str, ...]
) -> None:
    fields: Any = {
        "model": MODEL, "input": "hi", "tools": FLAT, "tool_choice": choice, "temperature": 0,
        "parallel_tool_calls": False, "max_output_tokens": MOST,
    }  # fmt: skip
    whole = client.responses.create(**fields)
    assert whole.status == "completed"
    (item,) = whole.output
    assert item.type == "function_call"
    assert fits(item.name, json.loads(item.arguments), names)
    with client.responses.stream(**fields) as stream:
        events = list(stream)
        (streamed,) = stream.get_final_response().output
    assert streamed.type == "function_call"
    assert (streamed.name, streamed.arguments) == (item.name, item.arguments)
    told = [one.delta for one in events if one.type == "response.function_call_arguments.delta"]
    assert "".join(told) == item.arguments
    kinds = {one.type for one in events}
    assert not kinds & {"response.output_text.delta", "response.failed"}


def test_a_message_is_forced_to_one_call(messages: anthropic.Anthropic) -> None:
    for choice, names in (
        ({"type": "any"}, NAMES),
        ({"type": "tool", "name": "wait"}, ("wait",)),
    ):
        chosen: Any = {**choice, "disable_parallel_tool_use": True}
        fields: Any = {
            "model": MODEL, "max_tokens": MOST, "messages": SAID, "tools": ANTHROPIC,
            "tool_choice": chosen, "extra_body": {"temperature": 0},
        }  # fmt: skip
        message = messages.messages.create(**fields)
        assert message.stop_reason == "tool_use"
        (block,) = message.content
        assert block.type == "tool_use"
        assert fits(block.name, block.input, names)
        with messages.messages.stream(**fields) as stream:
            streamed = stream.get_final_message()
        assert streamed.stop_reason == "tool_use"
        (again,) = streamed.content
        assert again.type == "tool_use"
        assert again.input == block.input


def test_with_tools_that_may_be_called_an_answer_keeps_its_schema_or_is_a_call(
    server: Server,
) -> None:
    body = {
        "messages": SAID, "tools": TOOLS, "response_format": FORMAT, "max_tokens": MOST,
        "temperature": 1.0, "parallel_tool_calls": False, "n": 4, "seed": 1,
    }  # fmt: skip
    for choice in server.post("/v1/chat/completions", body).json()["choices"]:
        calls = choice["message"].get("tool_calls")
        if calls:
            function = calls[0]["function"]
            assert fits(function["name"], json.loads(function["arguments"]))
        else:
            assert valid(choice["message"]["content"])


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"schema": {"not": {}}}, "not"),
        ({"schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"schema": {"type": "string", "pattern": "(a"}}, "unclosed group"),
        ({"schema": {"$ref": "https://example.com"}}, "https://example.com"),
        ({"schema": 3}, "needs a schema"),
        ({"type": "regex", "pattern": "a{2"}, "response_format: "),
        ({"type": "regex"}, "response_format.pattern"),
        ({"type": "grammar", "grammar": "start: foo"}, "1(8)"),
        ({"type": "grammar", "grammar": 'start: A\nA: "a" & "b"'}, "at 2(8): &"),
        ({"type": "xml"}, "must be one of text, json_object"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(server: Server, form: Any, told: str) -> None:
    full = form if "type" in form else {"type": "json_schema", "json_schema": form}
    for path, fields in (
        ("/v1/chat/completions", {"messages": SAID}),
        ("/v1/completions", {"prompt": "x"}),
    ):
        answer = server.post(path, {**fields, "response_format": full})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["type"]) == ("response_format", "invalid_request_error")
        assert told in error["message"]


def test_tools_that_cannot_be_forced_are_refused_by_name(server: Server) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"anyOf": [{}]}}}]
    body = {"messages": SAID, "tools": tools, "tool_choice": "required"}
    error = server.post("/v1/chat/completions", body).json()["error"]
    assert error["param"] == "tools"
    assert "'f'" in error["message"]
    assert "anyOf" in error["message"]


def test_nothing_is_left_behind(server: Server) -> None:
    state = server.wait_idle()
    assert state["running"] == 0
    assert server.complete(prompt="x", max_tokens=2)["usage"]["completion_tokens"] == 2
