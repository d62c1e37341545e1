"""Calls of tools over loopback, with an engine that says what the user said."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server.rig import Server, serving

D = "｜DSML｜"
BLOCK = (
    f'\n\n<{D}tool_calls>\n<{D}invoke name="add">\n'
    f'<{D}parameter name="a" string="false">1</{D}parameter>\n'
    f'<{D}parameter name="note" string="true">ü"</{D}parameter>\n</{D}invoke>\n'
    f'<{D}invoke name="now">\n\n</{D}invoke>\n</{D}tool_calls>'
)
TOOLS: Any = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "now"}},
]
THINKING: Any = {"thinking": {"type": "enabled"}}
CALLS = [("add", '{"a": 1, "note": "ü\\""}'), ("now", "{}")]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--kv-tokens", "8192", "--speculation", "3") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="x", base_url=server.url + "/v1", max_retries=0) as made:
        yield made


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("text", "content", "thought"),
    [
        (f"why</think>so{BLOCK}", "so", "why"),
        (f"why{BLOCK}", None, "why"),
        (f"</think>{BLOCK}", None, None),
    ],
)
def test_calls_by_the_sdk(
    client: openai.OpenAI, text: str, content: str | None, thought: str | None
) -> None:
    done = client.chat.completions.create(
        model="deskside-mini", messages=said(text), tools=TOOLS, temperature=0, extra_body=THINKING
    )
    (choice,) = done.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == content
    assert choice.message.reasoning_content == thought  # type: ignore[attr-defined]
    calls: Any = choice.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == CALLS
    assert len({call.id for call in calls}) == 2
    assert all(call.id.startswith("call_") and call.type == "function" for call in calls)


@pytest.mark.parametrize("text", [f"why</think>so{BLOCK}", f"why{BLOCK}"])
def test_streamed_calls_are_those_of_a_whole_answer(server: Server, text: str) -> None:
    events = server.events("/v1/chat/completions", messages=said(text), tools=TOOLS, **THINKING)
    assert events.pop() == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    found = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["index"] for call in found] == [0, 1]
    assert len({call["id"] for call in found}) == 2
    functions = [(call["function"]["name"], call["function"]["arguments"]) for call in found]
    assert functions == CALLS
    assert not [delta for delta in deltas if delta.get("tool_calls") == []]
    assert "".join(delta.get("content") or "" for delta in deltas) == ("so" if "so" in text else "")
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == "why"
    reasons = [event["choices"][0].get("finish_reason") for event in events]
    assert reasons == [None] * (len(events) - 1) + ["tool_calls"]
    assert deltas[-1] == {}


def test_the_sdk_accumulates_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="deskside-mini",
        messages=said(f"</think>{BLOCK}"),
        tools=TOOLS,
        temperature=0,
        extra_body=THINKING,
    ) as stream:
        for _ in stream:
            pass
        done = stream.get_final_completion()
    calls: Any = done.choices[0].message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == CALLS


def test_malformed_calls_are_text(server: Server) -> None:
    for end in (20, 60, BLOCK.index("</") - 3):
        text = f"so{BLOCK[:end]}"
        body = {"messages": said(f"</think>{text}"), "tools": TOOLS, "temperature": 0, **THINKING}
        (choice,) = server.post("/v1/chat/completions", body).json()["choices"]
        assert choice["message"]["content"] == text
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"


def test_a_limit_within_a_call(server: Server) -> None:
    body = {"messages": said(f"</think>so{BLOCK}"), "tools": TOOLS, "temperature": 0, **THINKING}
    whole = server.post("/v1/chat/completions", body).json()
    tokens = whole["usage"]["completion_tokens"]
    for limit in range(1, tokens + 1):
        (choice,) = server.post("/v1/chat/completions", {**body, "max_tokens": limit}).json()[
            "choices"
        ]
        calls = choice["message"].get("tool_calls", [])
        names = [call["function"]["name"] for call in calls]
        assert names == ["add", "now"][: len(names)]
        assert choice["finish_reason"] == ("tool_calls" if limit == tokens else "length")
        content = choice["message"]["content"] or ""
        if not calls:
            assert f"so{BLOCK}".startswith(content.rstrip("\ufffd"))


def test_one_call_alone(server: Server) -> None:
    body = {"messages": said(f"</think>{BLOCK}"), "tools": TOOLS, "temperature": 0, **THINKING}
    body["parallel_tool_calls"] = False
    (choice,) = server.post("/v1/chat/completions", body).json()["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["add"]


def test_none_offers_no_tools(server: Server) -> None:
    """The prompt is that of a request without tools, and what looks like a call is text."""
    plain = server.post("/render", {"messages": said("hi")}).json()
    none = {"messages": said("hi"), "tools": TOOLS, "tool_choice": "none"}
    assert server.post("/render", none).json() == plain
    offered = server.post("/render", {"messages": said("hi"), "tools": TOOLS}).json()
    assert offered["count"] > plain["count"]
    for tool in TOOLS:
        assert json.dumps(tool["function"]) in offered["prompt"]
    body = {**none, "messages": said(f"</think>{BLOCK}"), "temperature": 0, **THINKING}
    (choice,) = server.post("/v1/chat/completions", body).json()["choices"]
    assert choice["message"]["content"] == BLOCK
    assert choice["finish_reason"] == "stop"


def test_calls_and_results_come_back(client: openai.OpenAI, server: Server) -> None:
    """A second turn with what the SDK returned of the first."""
    first = (
        client.chat.completions.create(
            model="deskside-mini",
            messages=said(f"why</think>so{BLOCK}"),
            tools=TOOLS,
            temperature=0,
            extra_body=THINKING,
        )
        .choices[0]
        .message
    )
    calls: Any = first.tool_calls
    turn: Any = [
        *said("q"),
        first.to_dict(),
        {"role": "tool", "tool_call_id": calls[1].id, "content": "noon"},
        {"role": "tool", "tool_call_id": calls[0].id, "content": "3"},
    ]
    shown = server.post("/render", {"messages": turn, "tools": TOOLS, **THINKING}).json()["prompt"]
    assert shown.endswith(
        f"<｜User｜>q<｜Assistant｜><think>why</think>so{BLOCK}<｜end▁of▁sentence｜>"
        "<｜User｜><tool_result>3</tool_result>\n\n<tool_result>noon</tool_result>"
        "<｜Assistant｜><think>"
    )


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools", "must be function"),
        ({"tools": [*TOOLS, *TOOLS]}, "tools", "stands twice"),
        ({"tools": {}}, "tools", "valid list"),
        ({"tool_choice": "required"}, "tool_choice", "needs at least one tool"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "there is no tool 'x'",
        ),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "must be auto, none, required or"),
        ({"functions": [{"name": "f"}]}, "functions", "not supported"),
    ],
)
def test_refusals(server: Server, fields: dict[str, Any], param: str, words: str) -> None:
    answer = server.post("/v1/chat/completions", {"messages": said("hi"), **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]


def test_raw_completions_know_no_tools(server: Server) -> None:
    answer = server.post("/v1/completions", {"prompt": "a", "tools": TOOLS})
    assert answer.json()["error"]["param"] == "tools"
