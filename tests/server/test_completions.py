"""Completions over loopback: shapes, streams, options, refusals."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server.rig import Server, serving

SCRIPT = [0, 300, 400, 500, 600, 700]
"""Start token, then what the scripted target says before it ends."""
EOS = 1


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--kv-tokens", "8192", "--speculation", "3") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="x", base_url=server.url + "/v1", max_retries=0) as made:
        yield made


def text_of(server: Server, tokens: list[int]) -> str:
    return server.post("/detokenize", {"tokens": tokens}).json()["prompt"]


def test_a_completion_by_the_sdk(client: openai.OpenAI, server: Server) -> None:
    done = client.completions.create(model="deskside-mini", prompt=SCRIPT, temperature=0)
    (choice,) = done.choices
    assert choice.text == text_of(server, SCRIPT[1:])
    assert choice.finish_reason == "stop"
    assert done.usage is not None
    assert done.usage.prompt_tokens == 6
    assert done.usage.completion_tokens == 6  # the end token counts
    assert done.usage.total_tokens == 12


async def _by_async(url: str) -> tuple[str, str]:
    async with openai.AsyncOpenAI(api_key="x", base_url=url, max_retries=0) as client:
        whole = await client.completions.create(model="deskside-mini", prompt=SCRIPT, temperature=0)
        stream = await client.completions.create(
            model="deskside-mini", prompt=SCRIPT, temperature=0, stream=True
        )
        return whole.choices[0].text, "".join([c.choices[0].text async for c in stream])


def test_the_async_sdk_agrees(server: Server) -> None:
    import asyncio

    whole, streamed = asyncio.run(_by_async(server.url + "/v1"))
    assert whole == streamed == text_of(server, SCRIPT[1:])


def test_a_stream_has_the_rules_of_a_stream(server: Server) -> None:
    events = server.events("/v1/completions", prompt=SCRIPT, stream_options={"include_usage": True})
    assert events.pop() == "[DONE]"
    last = events.pop()
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6
    assert {(e["id"], e["created"], e["model"], e["object"]) for e in [*events, last]} == {
        (last["id"], last["created"], "deskside-mini", "text_completion")
    }
    assert all(e["usage"] is None for e in events)
    ends = [e["choices"][0] for e in events if e["choices"][0]["finish_reason"] is not None]
    assert [(end["finish_reason"], end["text"]) for end in ends] == [("stop", "")]
    assert "".join(e["choices"][0]["text"] for e in events) == text_of(server, SCRIPT[1:])


def test_without_the_option_a_stream_says_nothing_of_usage(server: Server) -> None:
    events = server.events("/v1/completions", prompt=SCRIPT)
    assert events[-1] == "[DONE]"
    assert not any("usage" in event for event in events[:-1])


def test_a_list_of_prompts_and_several_choices(server: Server) -> None:
    done = server.complete(prompt=[[0, 7, 8], [0, 9]], n=2)
    assert [choice["index"] for choice in done["choices"]] == [0, 1, 2, 3]
    first, second = text_of(server, [7, 8]), text_of(server, [9])
    assert [choice["text"] for choice in done["choices"]] == [first, first, second, second]
    assert done["usage"]["prompt_tokens"] == 5
    assert done["usage"]["completion_tokens"] == 3 + 3 + 2 + 2
    events = server.events("/v1/completions", prompt=[[0, 7, 8], [0, 9]], n=2)
    ends = [e["choices"][0] for e in events[:-1] if e["choices"][0]["finish_reason"]]
    assert sorted(end["index"] for end in ends) == [0, 1, 2, 3]


def test_text_becomes_ids_behind_the_start_token(server: Server) -> None:
    text = "def area(width):\n    return"
    ids = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert ids[0] == 0
    done = server.complete(prompt=text, max_tokens=100)
    assert done["usage"]["prompt_tokens"] == len(ids)
    assert done["choices"][0]["text"] == text  # the script repeats it


def test_echo_shows_the_prompt_first(server: Server) -> None:
    text = "def area"
    assert server.complete(prompt=text, echo=True)["choices"][0]["text"] == text + text
    alone = server.complete(prompt=text, echo=True, max_tokens=0)
    assert alone["choices"][0]["text"] == text
    assert alone["usage"]["completion_tokens"] == 0
    streamed = server.events("/v1/completions", prompt=text, echo=True)
    assert "".join(e["choices"][0]["text"] for e in streamed[:-1]) == text + text


def test_a_seed_repeats_a_run(server: Server) -> None:
    def run(seed: int | None) -> dict[str, Any]:
        return server.complete(prompt=SCRIPT, temperature=2.0, seed=seed, max_tokens=12)

    outputs = {run(42)["choices"][0]["text"] for _ in range(5)}
    assert len(outputs) == 1
    assert run(43)["choices"][0]["text"] not in outputs
    free = run(None)["choices"][0]
    assert server.complete(
        prompt=SCRIPT, temperature=2.0, seed=free["seed"], max_tokens=12
    )["choices"][0]["text"] == free["text"]  # fmt: skip


def test_choices_of_one_seed_differ(server: Server) -> None:
    done = server.complete(prompt=SCRIPT, temperature=2.0, seed=42, n=4, max_tokens=12)
    assert len({choice["text"] for choice in done["choices"]}) > 1
    again = server.complete(prompt=SCRIPT, temperature=2.0, seed=42, n=4, max_tokens=12)
    assert [c["text"] for c in done["choices"]] == [c["text"] for c in again["choices"]]


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"max_tokens": 3}, 3),
        ({"stop_token_ids": [500]}, 3),
        ({"ignore_eos": True, "max_tokens": 9}, 9),
        ({"min_tokens": 8, "max_tokens": 9}, 9),  # the end token has no mass before
        ({"logit_bias": {"1": 100}}, 1),
        ({"logit_bias": {"400": -100}, "max_tokens": 2}, 2),
    ],
)
def test_options_change_the_end(server: Server, options: dict[str, Any], tokens: int) -> None:
    done = server.complete(prompt=SCRIPT, **options)
    assert done["usage"]["completion_tokens"] == tokens
    events = server.events(
        "/v1/completions", prompt=SCRIPT, stream_options={"include_usage": True}, **options
    )
    assert events[-2]["usage"] == done["usage"]
    text = "".join(e["choices"][0]["text"] for e in events[:-2])
    assert text == done["choices"][0]["text"]


def test_penalties_count_tokens_of_the_same_block(server: Server) -> None:
    prompt = [0, *[700] * 6]
    plain = server.complete(prompt=prompt, max_tokens=6)
    assert plain["choices"][0]["text"] == text_of(server, [700] * 6)
    done = server.complete(prompt=prompt, max_tokens=6, presence_penalty=2.0)
    # 700 scores 10 and 701 scores 9: after the first 700, 701 wins once, then 700 again.
    assert done["choices"][0]["text"] == text_of(server, [700, 701, 700, 700, 700, 700])


def test_a_stop_string_is_cut_and_never_begun(server: Server) -> None:
    words = server.post(
        "/tokenize", {"prompt": "return width * height", "add_special_tokens": False}
    )
    prompt = [0, *words.json()["tokens"]]
    for stop in ("width", "th * h", " height", "t", "idt"):
        text = "return width * height"
        want = text[: text.index(stop)] if stop in text else text
        done = server.complete(prompt=prompt, stop=stop, max_tokens=50)
        assert done["choices"][0]["text"] == want, stop
        events = server.events("/v1/completions", prompt=prompt, stop=[stop], max_tokens=50)
        assert "".join(e["choices"][0]["text"] for e in events[:-1]) == want, stop


def test_logprobs_have_one_entry_a_token(server: Server) -> None:
    done = server.complete(prompt=SCRIPT, logprobs=2, max_tokens=5)
    listed = done["choices"][0]["logprobs"]
    assert {len(values) for values in listed.values()} == {5}
    assert "".join(listed["tokens"]) == done["choices"][0]["text"]
    for token, chosen, top in zip(
        listed["tokens"], listed["token_logprobs"], listed["top_logprobs"], strict=True
    ):
        assert top[token] == chosen
        assert len(top) == 2
    events = server.events("/v1/completions", prompt=SCRIPT, logprobs=2, max_tokens=5)
    parts = [e["choices"][0]["logprobs"] for e in events[:-1] if e["choices"][0]["logprobs"]]
    assert [t for part in parts for t in part["tokens"]] == listed["tokens"]
    assert [o for part in parts for o in part["text_offset"]] == listed["text_offset"]


PROMPTS: list[Any] = ["def area", SCRIPT, ["a b", "x\U0001f642y"], [[0, 300], [400, 401, 402]], [7]]


@pytest.mark.parametrize("most", [0, 1, 6])
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda one: repr(one)[:20])
def test_an_echoed_prompt_is_scored(server: Server, prompt: Any, most: int) -> None:
    fields = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": most}
    done = server.complete(**fields)
    plain = server.complete(prompt=prompt, echo=True, max_tokens=most)
    assert [c["text"] for c in done["choices"]] == [c["text"] for c in plain["choices"]]
    assert done["usage"] == plain["usage"]
    entries = sum(len(choice["logprobs"]["tokens"]) for choice in done["choices"])
    assert entries == done["usage"]["total_tokens"]
    for choice in done["choices"]:
        _is_well_listed(choice)
    events = server.events("/v1/completions", **fields)
    assert events[-1] == "[DONE]"
    for want in done["choices"]:
        mine = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == want["index"]]
        parts = [one["logprobs"] for one in mine if one.get("logprobs")]
        for kind, values in want["logprobs"].items():
            assert [value for part in parts for value in part[kind]] == values
        assert "".join(one["text"] for one in mine) == want["text"]
        assert [one["finish_reason"] for one in mine if one["finish_reason"]] == [
            want["finish_reason"]
        ]


def _is_well_listed(choice: dict[str, Any]) -> None:
    listed = choice["logprobs"]
    assert len({len(values) for values in listed.values()}) == 1
    assert (listed["token_logprobs"][0], listed["top_logprobs"][0]) == (None, None)
    assert None not in listed["token_logprobs"][1:]
    offsets = listed["text_offset"]
    assert offsets == sorted(offsets)
    ends = [*offsets[1:], len(choice["text"])]
    for token, number, top, start, end in zip(
        *(listed[kind] for kind in ("tokens", "token_logprobs", "top_logprobs")),
        offsets,
        ends,
        strict=True,
    ):
        if top is not None:
            assert len(top) == 2
            assert top[token] == number == max(top.values())
        if end > start and not token.startswith("bytes:"):
            assert choice["text"][start:end] == token


def test_several_choices_of_an_echoed_prompt(server: Server) -> None:
    done = server.complete(prompt="def area", echo=True, logprobs=0, max_tokens=3, n=2)
    first, second = done["choices"]
    assert first["logprobs"] == second["logprobs"]
    assert first["text"] == second["text"]
