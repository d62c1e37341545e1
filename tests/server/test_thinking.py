"""A model that never closes its thought still answers, by every API, within a budget."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.rig import Server, serving

TEXT = "why " * 40
BLOCKS = ["0", "3", "5"]
ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {"reasoning_effort": "low"},
    "messages": {},
    "responses": {"reasoning": {"effort": "low"}},
}
"""deskside-mini does not think unasked."""


@pytest.fixture(scope="module", params=BLOCKS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    speculation = request.param if request.param != "0" else "off"
    with serving(
        *("--kv-tokens", "4096", "--speculation", speculation, "--thinking-budget", "30")
    ) as running:
        yield running


def said(text: str = TEXT) -> list[Any]:
    return [{"role": "user", "content": text}]


def counts(details: dict[str, int]) -> tuple[int, int]:
    return details["reasoning_tokens"], details["forced_tokens"]


def chat(server: Server, **fields: Any) -> dict[str, Any]:
    body = {"messages": said(), "temperature": 0, **ASKED["chat/completions"], **fields}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("budget", range(1, 13))
def test_chat(server: Server, budget: int) -> None:
    """The budget falls into every place of a block; usage says what was forced."""
    done = chat(server, thinking_budget=budget, logprobs=True)
    (choice,) = done["choices"]
    assert choice["message"]["content"]
    assert choice["message"]["reasoning"]
    details = done["usage"]["completion_tokens_details"]
    assert (details["reasoning_tokens"], details["forced_tokens"]) == (budget + 1, 1)
    assert len(choice["logprobs"]["content"]) == done["usage"]["completion_tokens"]
    assert choice["finish_reason"] == "stop"
    other = chat(server, thinking={"type": "enabled", "budget_tokens": budget})
    assert other["choices"][0]["message"] == choice["message"]


def test_a_stream_is_the_same(server: Server) -> None:
    whole = chat(server, thinking_budget=7)["choices"][0]["message"]
    fields = {"messages": said(), "thinking_budget": 7, **ASKED["chat/completions"]}
    events = server.events("/v1/chat/completions", **fields)
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    for name in ("content", "reasoning"):
        assert "".join(delta.get(name) or "" for delta in deltas) == whole[name]


def test_messages_and_responses(server: Server) -> None:
    thinking = {"type": "enabled", "budget_tokens": 7}
    body = {"model": "deskside-mini", "max_tokens": 500, "temperature": 0}
    found = server.post("/v1/messages", {**body, "messages": said(), "thinking": thinking}).json()
    assert [block["type"] for block in found["content"]] == ["thinking", "text"]
    body = {"input": TEXT, "temperature": 0, "thinking_budget": 7, **ASKED["responses"]}
    other = server.post("/v1/responses", body).json()
    assert [item["type"] for item in other["output"]] == ["reasoning", "message"]
    assert other["output"][1]["content"][0]["text"] == found["content"][1]["text"]
    assert counts(other["usage"]["output_tokens_details"]) == (8, 1)


def test_the_budget_of_the_service(server: Server) -> None:
    """Where the request does not say; of a small limit half, so that there is an answer too."""
    assert counts(chat(server)["usage"]["completion_tokens_details"]) == (31, 1)
    for limit in (3, 10, 21):
        done = chat(server, max_tokens=limit)
        details = done["usage"]["completion_tokens_details"]
        assert counts(details) == (limit // 2 + 1, 1)
        assert done["choices"][0]["message"]["content"]
        assert done["usage"]["completion_tokens"] == limit


def test_a_thought_that_ends_by_itself(server: Server) -> None:
    done = chat(server, messages=said("why</think>so"), thinking_budget=100)
    assert done["choices"][0]["message"]["content"] == "so"
    assert done["usage"]["completion_tokens_details"]["forced_tokens"] == 0
    none = chat(server, thinking={"type": "disabled"}, thinking_budget=3)
    assert counts(none["usage"]["completion_tokens_details"]) == (0, 0)


def test_the_guard(server: Server) -> None:
    done = chat(server, thinking_budget=150, repetition_guard=4)
    details = done["usage"]["completion_tokens_details"]
    assert details["forced_tokens"] == 1
    assert details["reasoning_tokens"] < 60


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"thinking_budget": 0}, "thinking_budget"),
        ("chat/completions", {"thinking_budget": 9, "max_tokens": 10}, "thinking_budget"),
        ("chat/completions", {"thinking_budget": 10**6}, "thinking_budget"),
        ("chat/completions", {"repetition_guard": 1}, "repetition_guard"),
        (
            "chat/completions",
            {"thinking_budget": 9, "thinking": {"type": "enabled", "budget_tokens": 8}},
            "thinking_budget",
        ),
        (
            "chat/completions",
            {"thinking": {"type": "enabled", "budget_tokens": 0}},
            "thinking",
        ),
        (
            "messages",
            {
                "model": "deskside-mini",
                "max_tokens": 10,
                "thinking": {"type": "enabled", "budget_tokens": 10},
            },
            "thinking",
        ),
        (
            "responses",
            {"input": "x", "thinking_budget": 5, "max_output_tokens": 6},
            "thinking_budget",
        ),
    ],
)
def test_refusals(server: Server, path: str, fields: dict[str, Any], param: str) -> None:
    messages = {} if path == "responses" else {"messages": said()}
    answer = server.post(f"/v1/{path}", {**messages, **ASKED[path], **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
