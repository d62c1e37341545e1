"""OpenAI's responses over loopback, judged by its SDK; the engine says what the user said."""

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
    f'<{D}invoke name="patch">\n'
    f'<{D}parameter name="input" string="true">*** Begin\n</{D}parameter>\n</{D}invoke>\n'
    f"</{D}tool_calls>"
)
TOOLS: Any = [
    {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "text"}},
    {"type": "web_search"},
]
MODEL = "deskside-mini"
TALK = f"why</think>so{BLOCK}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--kv-tokens", "8192", "--speculation", "3", "--prefix-cache", "off") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="x", base_url=server.url + "/v1", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, said: Any, **fields: Any) -> Any:
    fields.setdefault("reasoning", {"effort": "low"})  # deskside-mini does not think unasked
    return client.responses.create(model=MODEL, input=said, temperature=0, **fields)


def test_an_answer_by_the_sdk(client: openai.OpenAI) -> None:
    done = ask(client, "why</think>so", instructions="Be short.", store=False)
    assert (done.status, done.object, done.model) == ("completed", "response", MODEL)
    assert done.id.startswith("resp_")
    assert [item.type for item in done.output] == ["reasoning", "message"]
    assert done.output[0].content[0].text == "why"
    assert done.output_text == "so"
    assert done.output[0].id.startswith("rs_")
    assert done.output[1].id.startswith("msg_")
    usage = done.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens
    assert (done.instructions, done.store, done.previous_response_id) == ("Be short.", False, None)


def test_calls_by_the_sdk(client: openai.OpenAI) -> None:
    done = ask(client, TALK, tools=TOOLS)
    assert [item.type for item in done.output] == [
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
    ]
    call, patch = done.output[2:]
    assert (call.name, call.arguments) == ("add", '{"a": 1, "note": "ü\\""}')
    assert (patch.name, patch.input) == ("patch", "*** Begin\n")
    assert len({call.call_id, patch.call_id, call.id, patch.id}) == 4
    one = ask(client, TALK, tools=TOOLS, parallel_tool_calls=False)
    assert [item.type for item in one.output] == ["reasoning", "message", "function_call"]


@pytest.mark.parametrize(
    ("text", "limit"), [("why</think>so", None), (TALK, None), (f"why{BLOCK}", None), (TALK, 6)]
)
def test_a_stream_adds_up_to_the_whole(client: openai.OpenAI, text: str, limit: int | None) -> None:
    """The order of events, their numbers and places, and that each done says what came before."""
    whole = ask(client, text, tools=TOOLS, max_output_tokens=limit)
    found = [
        e.to_dict() for e in ask(client, text, tools=TOOLS, max_output_tokens=limit, stream=True)
    ]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    names = [event["type"] for event in found]
    assert names[:2] == ["response.created", "response.in_progress"]
    status = "incomplete" if limit else "completed"
    assert names[-1] == f"response.{status}"
    assert names.count(names[-1]) == 1
    items: list[dict[str, Any]] = []
    texts: list[str] = []
    is_open = False
    for event in found[2:-1]:
        name = event["type"]
        if name == "response.output_item.added":
            assert not is_open
            assert event["output_index"] == len(items)
            items.append(event["item"])
            texts.append("")
            is_open = True
            continue
        assert is_open
        assert event["output_index"] == len(items) - 1
        if name == "response.output_item.done":
            assert event["item"]["id"] == items[-1]["id"]
            items[-1] = event["item"]
            is_open = False
        else:
            assert event["item_id"] == items[-1]["id"]
        if name.endswith(".delta"):
            texts[-1] += event["delta"]
        if name.endswith("_text.done"):
            assert event["text"] == texts[-1]
    assert not is_open
    last = found[-1]["response"]
    assert last["output"] == items
    assert len({event["response"]["id"] for event in (found[0], found[1], found[-1])}) == 1
    shown = [
        item["content"][0]["text"]
        if "content" in item
        else item.get("arguments", item.get("input"))
        for item in items
    ]
    assert shown == texts
    assert [without_ids(item) for item in items] == [
        without_ids(item.to_dict()) for item in whole.output
    ]
    assert last["usage"] == whole.usage.to_dict()
    assert last["incomplete_details"] == ({"reason": "max_output_tokens"} if limit else None)


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


def test_the_sdk_accumulates_a_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model=MODEL, input="why</think>so", temperature=0, reasoning={"effort": "low"}
    ) as stream:
        for _ in stream:
            pass
        done = stream.get_final_response()
    assert done.output_text == "so"


@pytest.mark.parametrize("seals", [False, True])
def test_a_turn_of_an_agent(client: openai.OpenAI, server: Server, seals: bool) -> None:
    """What came is sent back with results, as a client without a store does."""
    include: Any = ["reasoning.encrypted_content"] if seals else []
    fields: Any = {"tools": TOOLS, "include": include, "store": False, "prompt_cache_key": "k"}
    first = ask(client, TALK, **fields)
    back = [item.to_dict() for item in first.output]
    if seals:
        back[0].pop("content")
    said: Any = [
        {"type": "message", "role": "developer", "content": "You are an agent. " * 300},
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        *back,
        {"type": "custom_tool_call_output", "call_id": back[3]["call_id"], "output": "done"},
        {
            "type": "function_call_output",
            "call_id": back[2]["call_id"],
            "output": [{"type": "input_text", "text": "3"}],
        },
        {"role": "user", "content": "Go on."},
    ]
    second = ask(
        client, said, instructions="I", reasoning={"effort": "high", "summary": "auto"}, **fields
    )
    custom = {"name": "patch", "description": "Patches."}
    custom |= {
        "parameters": {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        }
    }
    calls = [
        {"id": "1", "function": {"name": "add", "arguments": back[2]["arguments"]}},
        {
            "id": "2",
            "function": {"name": "patch", "arguments": json.dumps({"input": back[3]["input"]})},
        },
    ]
    shown = server.post(
        "/render",
        {
            "messages": [
                {"role": "system", "content": "I"},
                {"role": "system", "content": "You are an agent. " * 300},
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "so", "reasoning": "why", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "1", "content": "3"},
                {"role": "tool", "tool_call_id": "2", "content": "done"},
                {"role": "user", "content": "Go on."},
            ],
            "reasoning_effort": "high",
            "tools": [
                {"function": {"name": "add", "parameters": {"type": "object"}}},
                {"function": custom},
            ],
        },
    ).json()
    assert "why</think>so" in shown["prompt"]
    assert second.usage.input_tokens == shown["count"]


def test_assistants_items_make_turns(server: Server) -> None:
    from deskside.server.responses.items import read_input, sealed

    def thought(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}

    said = {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]}
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
    found = read_input(
        [thought("a"), said, call, thought("d"), call, {"role": "user", "content": "e"}]
    )
    shown = [(m.role.value, m.reasoning, m.content, len(m.calls)) for m in found]
    assert shown == [
        ("assistant", "a", "b", 1),
        ("assistant", "d", "", 1),
        ("user", "", "e", 0),
    ]
    for secret, want in ((sealed("ü"), "ü"), ("gAAAA_-", ""), ("/w==", "")):
        (message,) = read_input([{"type": "reasoning", "encrypted_content": secret}])
        assert message.reasoning == want


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": []}, "input", "1 to"),
        ({"input": 3}, "input", "valid"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "nothing is stored"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input", "input[0].role must be"),
        ({"input": [{"type": "web_search_call"}]}, "input", "'web_search_call' is not supported"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input",
            "input[0].content[0]: this model reads text alone, got input_image",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input", "call_id must be"),
        ({"input": "\ud800"}, None, ""),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored"),
        ({"conversation": "c"}, "conversation", "nothing is stored"),
        ({"background": True}, "background", "not in this version"),
        ({"text": {"format": {"type": "json_schema"}}}, "text", "text.format: json_schema needs"),
        ({"reasoning": {"effort": "x"}}, "reasoning", "reasoning.effort: "),
        ({"tool_choice": "required"}, "tool_choice", "needs at least one tool"),
        ({"tools": [{"type": "function"}]}, "tools", "name must be text"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than"),
        ({"max_output_tokens": 10**6}, "input", "too long"),
    ],
)
def test_refusals(server: Server, fields: dict[str, Any], param: str | None, words: str) -> None:
    body = json.dumps({"input": "hi", **fields}).encode()
    answer = server.client.post(
        server.url + "/v1/responses", content=body, headers={"content-type": "application/json"}
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]
