"""A grammar that gives out in the middle of a text costs its own request, which is told so.

The library that follows grammars is scripted: behind some tokens it allows none, or fails.
"""

import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.server.rig import Server, serving

MODEL = "deskside-mini"
SAID = "one two three four five six seven eight"
HOWS = ("nowhere", "error")
TOLD = "the grammar cannot be followed any further"


@pytest.fixture(scope="module", params=["0", "3"], ids=["plain", "drafting"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    width = request.param if request.param != "0" else "off"
    with serving("--kv-tokens", "8192", "--speculation", width) as running:
        yield running


def form(how: str, tokens: int = 5) -> dict[str, str]:
    """Return a form that admits nearly any text and gives out behind some tokens of it."""
    return {"type": "regex", "pattern": f"[^~]*(~{how} behind {tokens})?"}


def free(server: Server) -> tuple[int, int]:
    state = server.wait_idle()
    return state["free_pages"], state["free_slots"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_a_whole_answer_and_a_stream(server: Server, how: str, tokens: int) -> None:
    before = free(server)
    chat = {"messages": [{"role": "user", "content": SAID}]}
    for path, fields in (("/v1/completions", {"prompt": SAID}), ("/v1/chat/completions", chat)):
        body = {**fields, "response_format": form(how, tokens), "max_tokens": 30}
        answer = server.post(path, {**body, "temperature": 0})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == ("grammar_failed", "invalid_request_error")
        assert TOLD in error["message"]
        *chunks, last = server.events(path, **body)
        assert last["error"]["code"] == "grammar_failed"
        assert chunks, "what came before is told"
        assert not any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])
    assert free(server) == before


@pytest.mark.parametrize("how", HOWS)
def test_the_clients_of_the_other_apis_raise(server: Server, how: str) -> None:
    before = free(server)
    with openai.OpenAI(api_key="x", base_url=server.url + "/v1", max_retries=0) as client:
        asked: Any = {"model": MODEL, "input": SAID, "text": {"format": form(how)}}
        with pytest.raises(openai.BadRequestError, match=TOLD):
            client.responses.create(**asked)
        *_, last = client.responses.create(**asked, stream=True)
        assert last.type == "response.failed"
        assert TOLD in last.response.error.message
    with anthropic.Anthropic(api_key="x", base_url=server.url, max_retries=0) as made:
        fields: Any = {
            "model": MODEL, "max_tokens": 30, "messages": [{"role": "user", "content": SAID}],
            "extra_body": {"output_config": {"format": form(how)}},
        }  # fmt: skip
        with pytest.raises(anthropic.BadRequestError, match=TOLD):
            made.messages.create(**fields)
        with (
            pytest.raises(anthropic.APIStatusError, match=TOLD),
            made.messages.stream(**fields) as stream,
        ):
            stream.get_final_message()
    assert free(server) == before


def test_nobody_else_is_hurt(server: Server) -> None:
    """Others stream meanwhile, one of them in a form too."""
    long = "slowly " + "on and on " * 60
    body: dict[str, Any] = {"messages": [{"role": "user", "content": long}], "max_tokens": 900}
    kept = {"type": "regex", "pattern": "[^~]*"}
    truth = server.post("/v1/chat/completions", {**body, "temperature": 0}).json()
    found: list[str] = []

    def read(**fields: Any) -> None:
        events = server.events("/v1/chat/completions", **body, **fields)
        text = [c["choices"][0]["delta"].get("content") or "" for c in events[:-1]]
        found.append("".join(text) if events[-1] == "[DONE]" else str(events[-1]))

    others = [
        threading.Thread(target=read),
        threading.Thread(target=read, kwargs={"response_format": kept}),
    ]
    for other in others:
        other.start()
    server.wait(lambda state: state["running"] == 2)
    for how in HOWS:
        failed = server.post(
            "/v1/completions",
            {"prompt": SAID, "response_format": form(how), "max_tokens": 30, "n": 2},
        )
        assert failed.json()["error"]["code"] == "grammar_failed"
    for other in others:
        other.join()
    assert found == [truth["choices"][0]["message"]["content"]] * 2
