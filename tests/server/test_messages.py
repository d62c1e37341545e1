"""Anthropic's API over loopback, judged by its own SDK; the engine says what the user said."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.server.rig import Server, serving

D = "｜DSML｜"
BLOCK = (
    f'\n\n<{D}tool_calls>\n<{D}invoke name="add">\n'
    f'<{D}parameter name="a" string="false">1</{D}parameter>\n'
    f'<{D}parameter name="note" string="true">ü"</{D}parameter>\n</{D}invoke>\n'
    f'<{D}invoke name="now">\n\n</{D}invoke>\n</{D}tool_calls>'
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS: Any = [
    {"name": "add", "description": "Adds.", "input_schema": SCHEMA},
    {"name": "now", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
]
INPUTS = [("add", {"a": 1, "note": 'ü"'}), ("now", {})]
THINKING: Any = {"type": "enabled", "budget_tokens": 200}
MODEL = "deskside-mini"
GREEDY = {"temperature": 0}
"""The SDK has no such argument any more; older ones and other clients send it."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--kv-tokens", "8192", "--speculation", "3", "--prefix-cache", "off") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="x", base_url=server.url, max_retries=0) as made:
        yield made


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def ask(client: anthropic.Anthropic, text: str, **fields: Any) -> anthropic.types.Message:
    fields = {"max_tokens": 1000, "messages": said(text), **fields}
    return client.messages.create(model=MODEL, extra_body=GREEDY, **fields)


def events(server: Server, text: str, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    body = {"model": MODEL, "max_tokens": 1000, "temperature": 0, "stream": True}
    body |= {"messages": said(text), **fields}
    found, name = [], ""
    with server.client.stream("POST", server.url + "/v1/messages", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((name, json.loads(line.removeprefix("data: "))))
    assert all(name == body["type"] for name, body in found)
    return found


def blocks_of(found: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Build the blocks from events, holding the order of the API."""
    names = [name for name, _ in found]
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    blocks: list[dict[str, Any]] = []
    is_open = False
    for name, body in found[2:-2]:
        if name == "content_block_start":
            assert not is_open
            assert body["index"] == len(blocks)
            blocks.append({**body["content_block"], "json": ""})
            is_open = True
            continue
        assert is_open
        assert body["index"] == len(blocks) - 1
        if name == "content_block_stop":
            is_open = False
            continue
        assert name == "content_block_delta"
        delta = body["delta"]
        kind = delta["type"].removesuffix("_delta")
        blocks[-1]["json" if kind == "input_json" else kind] += (
            delta["partial_json"] if kind == "input_json" else delta[kind]
        )
    assert not is_open
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    return blocks


def test_an_answer_by_the_sdk(client: anthropic.Anthropic) -> None:
    """Without a word about thinking there is none, as in that API."""
    done = ask(client, "hello there")
    assert done.id.startswith("msg_")
    assert (done.type, done.role, done.model) == ("message", "assistant", MODEL)
    assert [block.to_dict() for block in done.content] == [{"type": "text", "text": "hello there"}]
    assert (done.stop_reason, done.stop_sequence) == ("end_turn", None)
    assert done.usage.input_tokens > 3
    assert done.usage.output_tokens > 1


def test_thinking_is_a_block_of_its_own(client: anthropic.Anthropic) -> None:
    for thinking in (THINKING, {"type": "adaptive"}):
        done: Any = ask(client, "why</think>so", thinking=thinking)
        assert [block.type for block in done.content] == ["thinking", "text"]
        assert (done.content[0].thinking, done.content[1].text) == ("why", "so")
    off: Any = ask(client, "why</think>so", thinking={"type": "disabled"})
    assert [block.text for block in off.content] == ["why</think>so"]


def test_calls_by_the_sdk(client: anthropic.Anthropic) -> None:
    done: Any = ask(client, f"why</think>so{BLOCK}", thinking=THINKING, tools=TOOLS)
    assert [block.type for block in done.content] == ["thinking", "text", "tool_use", "tool_use"]
    calls = done.content[2:]
    assert [(call.name, call.input) for call in calls] == INPUTS
    assert len({call.id for call in calls}) == 2
    assert all(call.id.startswith("toolu_") for call in calls)
    assert done.stop_reason == "tool_use"


def test_one_call_alone(client: anthropic.Anthropic) -> None:
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    done: Any = ask(client, f"so{BLOCK}", tools=TOOLS, tool_choice=choice)
    assert [block.type for block in done.content] == ["text", "tool_use"]


@pytest.mark.parametrize("text", ["hello", f"why</think>so{BLOCK}", f"why{BLOCK}", ""])
def test_a_stream_adds_up_to_the_whole(
    server: Server, client: anthropic.Anthropic, text: str
) -> None:
    fields: Any = {"thinking": THINKING, "tools": TOOLS} if "<" in text else {}
    whole = ask(client, text, **fields)
    found = events(server, text, **fields)
    blocks = [{k: v for k, v in block.items() if k != "id"} for block in blocks_of(found)]
    assert blocks == [
        {k: v for k, v in block.to_dict().items() if k != "id"} for block in whole.content
    ]
    start, last = found[0][1]["message"], found[-2][1]
    assert start["content"] == []
    assert (start["stop_reason"], start["usage"]["output_tokens"]) == (None, 0)
    assert start["usage"]["input_tokens"] == whole.usage.input_tokens
    assert last["delta"] == {"stop_reason": whole.stop_reason, "stop_sequence": None}
    assert last["usage"]["output_tokens"] == whole.usage.output_tokens


def test_the_sdk_accumulates_a_stream(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model=MODEL,
        max_tokens=1000,
        extra_body=GREEDY,
        messages=said(f"why</think>so{BLOCK}"),
        thinking=THINKING,
        tools=TOOLS,
    ) as stream:
        text = "".join(stream.text_stream)
        done: Any = stream.get_final_message()
    assert text == "so"
    assert [(call.name, call.input) for call in done.content[2:]] == INPUTS
    assert done.stop_reason == "tool_use"


def test_ends(client: anthropic.Anthropic) -> None:
    short = ask(client, "hello there", max_tokens=1)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 1)
    stopped: Any = ask(client, "one END two", stop_sequences=["x", "END"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "END")
    assert stopped.content[0].text == "one "


def test_the_answer_goes_on_with_what_it_is_given(server: Server) -> None:
    messages = [*said("q"), {"role": "assistant", "content": "The answer is "}]
    body = {"model": MODEL, "messages": messages}
    shown = server.post("/render", {"messages": [*said("q")], "thinking": {"type": "disabled"}})
    count = server.post("/v1/messages/count_tokens", body).json()["input_tokens"]
    prefix = server.post("/tokenize", {"prompt": "The answer is ", "add_special_tokens": False})
    assert count == shown.json()["count"] + prefix.json()["count"]


def test_a_turn_of_an_agent(client: anthropic.Anthropic, server: Server) -> None:
    """Long system prompts in blocks, results of parallel calls, and words behind them."""
    first = ask(client, f"why</think>so{BLOCK}", thinking=THINKING, tools=TOOLS)
    calls: Any = first.content[2:]
    results = [
        {
            "type": "tool_result",
            "tool_use_id": calls[1].id,
            "content": [{"type": "text", "text": "noon"}],
        },
        {"type": "tool_result", "tool_use_id": calls[0].id, "content": "3", "is_error": False},
        {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
    ]
    system: Any = [
        {
            "type": "text",
            "text": "You are an agent. " * 500,
            "cache_control": {"type": "ephemeral"},
        },
        {"type": "text", "text": "Be short."},
    ]
    messages: Any = [
        *said("q"),
        {"role": "assistant", "content": [block.to_dict() for block in first.content]},
        {"role": "user", "content": results},
    ]
    fields: Any = {
        "model": MODEL,
        "system": system,
        "messages": messages,
        "thinking": THINKING,
        "tools": TOOLS,
    }
    counted = client.messages.count_tokens(**fields)
    function = [
        {"name": "add", "description": "Adds.", "parameters": SCHEMA},
        {"name": "now", "parameters": {"type": "object"}},
    ]
    calls_sent = [
        {"id": c.id, "function": {"name": c.name, "arguments": json.dumps(c.input)}} for c in calls
    ]
    shown = server.post(
        "/render",
        {
            "messages": [
                {"role": "system", "content": "\n\n".join(block["text"] for block in system)},
                *said("q"),
                {
                    "role": "assistant",
                    "content": "so",
                    "reasoning": "why",
                    "tool_calls": calls_sent,
                },
                {"role": "tool", "tool_call_id": calls[0].id, "content": "3"},
                {"role": "tool", "tool_call_id": calls[1].id, "content": "noon"},
                {"role": "user", "content": "Go on."},
            ],
            "tools": [{"type": "function", "function": one} for one in function],
            "thinking": {"type": "enabled"},
        },
    ).json()
    assert counted.input_tokens == shown["count"]
    done = client.messages.create(
        max_tokens=300,
        metadata={"user_id": "u"},
        extra_headers={"anthropic-beta": "context-management-2025-06-27"},
        extra_body={"context_management": {"edits": []}, **GREEDY},
        extra_query={"beta": "true"},
        **fields,
    )
    assert done.usage.input_tokens == shown["count"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]: this"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}
                        ],
                    }
                ]
            },
            "messages[0].content[0].content[0]: this model reads no image",
        ),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role must be"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content must be text"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "[0].text must be text"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "block of type 'x'"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": 1}]}]},
            "input must be an object",
        ),
        ({"system": [{"type": "image"}]}, "system[0]: this model reads no image"),
        ({"thinking": {"type": "x"}}, "thinking.type must be"),
        ({"output_config": {"effort": "x"}}, "output_config.effort: "),
        ({"output_config": {"format": {"type": "json_schema"}}}, "needs a schema"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers is not supported"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema must be an object"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: required needs at least one tool"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "there is no tool 'x'"),
        ({"tools": TOOLS, "tool_choice": {"type": "x"}}, "tool_choice.type must be"),
        ({"max_tokens": 100_000}, "too long"),
    ],
)
def test_refusals(server: Server, fields: dict[str, Any], words: str) -> None:
    body = {"model": MODEL, "max_tokens": 5, "messages": said("hi"), **fields}
    answer = server.post("/v1/messages", body)
    assert answer.status_code == 400
    told = answer.json()
    assert told["type"] == "error"
    assert told["error"]["type"] == "invalid_request_error"
    assert words in told["error"]["message"]


def test_errors_have_the_types_of_the_api(client: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="other", max_tokens=1, messages=said("x"))
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    answer = server.client.post(server.url + "/v1/messages", content=b"{")
    assert answer.json()["type"] == "error"
    unknown = server.post("/v1/messages/nothing", {})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    other = server.post("/v1/completions", {})
    assert "type" not in other.json()


def test_none_offers_no_tools(server: Server) -> None:
    count = "/v1/messages/count_tokens"
    plain = server.post(count, {"model": MODEL, "messages": said("hi")}).json()
    body = {"model": MODEL, "messages": said("hi"), "tools": TOOLS}
    assert server.post(count, body).json() != plain
    assert server.post(count, {**body, "tool_choice": {"type": "none"}}).json() == plain
