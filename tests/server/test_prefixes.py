"""What a service says of prompts that begin as earlier ones did; nothing of them is left held."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from deskside.layout.folder import resolve
from deskside.text.tokenizer import Tokenizer
from tests.server.rig import Server, read_events, serving

MODEL = "deskside-mini"
LONG = "Line after line. " * 60
PAGE = 128


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--kv-tokens", "8192", "--speculation", "3") as running:
        yield running


def said(*texts: str) -> list[Any]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


def metric(server: Server, name: str) -> float:
    lines = server.get("/metrics").text.splitlines()
    (found,) = [line for line in lines if line.startswith(name + "{")]
    return float(found.rpartition(" ")[2])


def chat(server: Server, *texts: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": said(*texts), "temperature": 0, "max_tokens": 20, **fields}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(reply: dict[str, Any]) -> int:
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_every_api_counts_what_was_computed_before(server: Server) -> None:
    text = "First of all. " + LONG
    first, again = chat(server, text), chat(server, text)
    known = (first["usage"]["prompt_tokens"] - 1) // PAGE * PAGE
    assert known >= PAGE
    assert (cached(first), cached(again)) == (0, known)
    with openai.OpenAI(api_key="x", base_url=server.url + "/v1", max_retries=0) as client:
        done = client.responses.create(model=MODEL, input=text, temperature=0)
    assert done.usage is not None
    assert done.usage.input_tokens_details.cached_tokens == known
    with anthropic.Anthropic(api_key="x", base_url=server.url, max_retries=0) as made:
        message = made.messages.create(model=MODEL, max_tokens=20, messages=said(text))
    assert message.usage.cache_read_input_tokens == known
    assert message.usage.input_tokens == first["usage"]["prompt_tokens"] - known


def test_a_stream_and_several_choices(server: Server) -> None:
    text = "Second of all. " + LONG
    first = chat(server, text, n=3)
    assert cached(first) == 0
    options = {"stream_options": {"include_usage": True}}
    *_, last, _ = server.events(
        "/v1/chat/completions", messages=said(text), max_tokens=9, n=2, **options
    )
    assert cached(last) == (first["usage"]["prompt_tokens"] - 1) // PAGE * PAGE


@pytest.mark.parametrize("how", ["stop", "length", "string"])
def test_the_next_turn_goes_on_whatever_ended_the_last(server: Server, how: str) -> None:
    text = f"Ended by {how}. " + LONG
    fields: dict[str, Any] = {"max_tokens": 4000}
    if how == "length":
        fields = {"max_tokens": 2 * PAGE}
    if how == "string":
        fields["stop"] = ["never there", LONG[-40:]]
    first = chat(server, text, **fields)
    choice, usage = first["choices"][0], first["usage"]
    assert choice["finish_reason"] == ("length" if how == "length" else "stop")
    computed = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    again = chat(server, text, choice["message"]["content"], "Go on.")
    least = usage["prompt_tokens"] // PAGE if how == "string" else computed // PAGE
    assert cached(again) >= least * PAGE


def test_the_next_turn_goes_on_behind_an_answer_that_was_left(server: Server) -> None:
    """What was read of it comes back: as far as it was told, pages of the answer are found."""
    text = "slowly " + LONG + LONG
    body = {"messages": said(text), "stream": True, "temperature": 0, "max_tokens": 900}
    part = ""
    with server.client.stream("POST", server.url + "/v1/chat/completions", json=body) as answer:
        for event in read_events(answer.iter_lines()):
            part += event["choices"][0]["delta"].get("content") or ""
            if len(part) > len(LONG):
                break
    server.wait_idle()
    prompt = server.post("/render", {"messages": said(text)}).json()["tokens"]
    hits = metric(server, "deskside_prefix_hits_total")
    again = chat(server, text, part, "Go on.")
    assert cached(again) >= (len(prompt) // PAGE + 1) * PAGE
    assert metric(server, "deskside_prefix_hits_total") - hits == cached(again)


def test_counters_and_free_pages(server: Server) -> None:
    text = "Third of all. " + LONG
    before = server.wait_idle()
    hits, asked = (metric(server, f"deskside_prefix_{name}_total") for name in ("hits", "queries"))
    replies = [chat(server, text) for _ in range(2)]
    assert metric(server, "deskside_prefix_hits_total") - hits == cached(replies[1]) > 0
    total = sum(reply["usage"]["prompt_tokens"] for reply in replies)
    assert metric(server, "deskside_prefix_queries_total") - asked == total
    assert metric(server, "vllm:prefix_cache_hits_total") == metric(
        server, "deskside_prefix_hits_total"
    )
    assert metric(server, "deskside_kv_cached_pages") > 0
    assert metric(server, "deskside_prefix_snapshots") > 0
    after = server.wait_idle()
    assert (after["free_pages"], after["free_slots"]) == (
        before["free_pages"],
        before["free_slots"],
    )


def test_an_answer_that_was_left_gives_everything_back(server: Server) -> None:
    text = "Fourth of all. " + LONG
    before = server.wait_idle()
    body = {"messages": said(text), "stream": True, "temperature": 0, "max_tokens": 500}
    with server.client.stream("POST", server.url + "/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())
    after = server.wait_idle()
    assert (after["free_pages"], after["free_slots"]) == (
        before["free_pages"],
        before["free_slots"],
    )
    assert cached(chat(server, text)) > 0


def test_off_is_off() -> None:
    with serving("--kv-tokens", "8192", "--prefix-cache", "off") as server:
        assert [cached(chat(server, LONG)) for _ in range(2)] == [0, 0]
        assert metric(server, "deskside_kv_cached_pages") == 0


def test_a_next_turn_has_the_ids_that_were_drawn() -> None:
    """Above temperature 0 a text is seldom drawn in the tokens that encoding it gives."""
    tokenizer = Tokenizer.open(resolve(MODEL))
    with serving("--kv-tokens", "8192", "--threads", "1", scripted=False) as server:
        for seed in range(20):
            first = chat(server, "Write.", temperature=1.2, seed=seed, max_tokens=2 * PAGE)
            text, usage = first["choices"][0]["message"]["content"], first["usage"]
            drawn = usage["completion_tokens"]
            others = len(tokenizer.encode_plain(text)) != drawn
            if "\ufffd" not in text and drawn > PAGE and others:
                break
        else:
            pytest.fail("no text was drawn in other tokens")
        again = chat(server, "Write.", text, "Go on.")
        assert cached(again) == (usage["prompt_tokens"] + drawn - 1) // PAGE * PAGE > 0


NOTE: Any = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 260, "maxLength": 300},
        "places": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 5},
    },
    "required": ["text", "places"],
}


FORCED = {"tool_choice": "required", "parallel_tool_calls": False}
ASKED = [*said("Write a note."), {"role": "assistant", "content": "?"}, *said("Do.")]


@pytest.fixture(scope="module")
def mini() -> Iterator[Server]:
    with serving("--kv-tokens", "8192", "--threads", "1", scripted=False) as running:
        yield running


def hits(server: Server) -> float:
    return metric(server, "deskside_prefix_hits_total")


@pytest.mark.parametrize(
    "extra", [{}, {"thinking": {"type": "enabled"}}], ids=["plain", "thinking"]
)
def test_the_next_turn_of_a_chat_goes_on_from_a_call(mini: Server, extra: dict[str, Any]) -> None:
    """The client spells the arguments in its own way, and sends the result."""
    tools = [{"type": "function", "function": {"name": "note", "parameters": NOTE}}]
    body = {"tools": tools, "temperature": 0.8, "max_tokens": 1500, "seed": 1, **extra}
    first = mini.post("/v1/chat/completions", {**body, **FORCED, "messages": ASKED}).json()
    (choice,), usage = first["choices"], first["usage"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    call["function"]["arguments"] = json.dumps(arguments, indent=2)
    result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
    before = hits(mini)
    turn = {**body, "messages": [*ASKED, choice["message"], result], "max_tokens": 3}
    again = mini.post("/v1/chat/completions", turn).json()
    computed = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    assert hits(mini) - before == cached(again) == computed // PAGE * PAGE > usage["prompt_tokens"]


def test_the_next_turn_of_a_message_goes_on_from_a_call(mini: Server) -> None:
    body: dict[str, Any] = {
        "tools": [{"name": "note", "input_schema": NOTE}],
        "model": MODEL, "temperature": 0, "max_tokens": 1500, "messages": ASKED,
    }  # fmt: skip
    choice = {"type": "any", "disable_parallel_tool_use": True}
    first = mini.post("/v1/messages", {**body, "tool_choice": choice}).json()
    assert first["stop_reason"] == "tool_use"
    (call,) = first["content"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "done"}
    turns = [
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result]},
    ]
    before = hits(mini)
    usage = mini.post("/v1/messages", {**body, "messages": [*ASKED, *turns]}).json()["usage"]
    spent = first["usage"]
    prompt = spent["input_tokens"] + spent.get("cache_read_input_tokens", 0)
    computed = prompt + spent["output_tokens"] - 1
    found = usage["cache_read_input_tokens"]
    assert hits(mini) - before == found == computed // PAGE * PAGE > prompt


def test_the_next_turn_of_a_response_goes_on_from_a_call(mini: Server) -> None:
    body: dict[str, Any] = {
        "tools": [{"type": "function", "name": "note", "parameters": NOTE}],
        "temperature": 0, "max_output_tokens": 1500, "input": said("Note."),
    }  # fmt: skip
    first = mini.post("/v1/responses", {**body, **FORCED}).json()
    (call,) = first["output"]
    assert call["type"] == "function_call"
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
    before = hits(mini)
    turn = {**body, "input": [*said("Note."), call, result], "max_output_tokens": 3}
    usage = mini.post("/v1/responses", turn).json()["usage"]
    spent = first["usage"]
    computed = spent["input_tokens"] + spent["output_tokens"] - 1
    found = usage["input_tokens_details"]["cached_tokens"]
    assert hits(mini) - before == found == computed // PAGE * PAGE > spent["input_tokens"]
