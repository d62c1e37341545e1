"""Text at the border of tokens, over loopback and with speculation on.

A prompt of single-byte tokens makes the engine emit them one by one, so that a character, a stop
string or the end of a thought is cut at every place of a block of proposals.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deskside.layout.folder import BUILTIN
from deskside.text.tokenizer import Tokenizer
from tests.server.rig import Server, serving

TEXT = "한국 🙂 e\u0301 👨\u200d👩\u200d👧 ß 你好\n x"
DATA = TEXT.encode()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--kv-tokens", "8192", "--speculation", "5") as running:
        yield running


@pytest.fixture(scope="module")
def prompt() -> "Prompts":
    return Prompts()


class Prompts:
    """Makes prompts that the scripted engine repeats byte for byte."""

    def __init__(self) -> None:
        tokenizer = Tokenizer.open(BUILTIN / "deskside-mini")
        spelled = {tokenizer.token_bytes(n): n for n in range(tokenizer.vocab_size)}
        self._ids = [spelled[bytes([byte])] for byte in range(256)]
        self._bos = tokenizer.bos

    def __call__(self, data: bytes) -> list[int]:
        return [self._bos, *(self._ids[byte] for byte in data)]


def streamed(server: Server, **fields: Any) -> list[dict[str, Any]]:
    """Return the choices of a stream's chunks."""
    events = server.events("/v1/completions", **fields)
    assert events[-1] == "[DONE]"
    return [event["choices"][0] for event in events[:-1]]


def both(server: Server, **fields: Any) -> dict[str, Any]:
    """Ask whole and as a stream, hold one against the other, and return the whole answer."""
    whole = server.complete(**fields)
    chunks = streamed(server, **fields)
    assert "".join(chunk["text"] for chunk in chunks) == whole["choices"][0]["text"]
    ends = [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]]
    assert ends == [whole["choices"][0]["finish_reason"]]
    return whole


def test_characters_that_are_split_over_tokens(server: Server, prompt: Prompts) -> None:
    fields = {"prompt": prompt(DATA), "max_tokens": 200}
    whole = both(server, **fields)
    assert whole["choices"][0]["text"] == TEXT
    assert whole["usage"]["completion_tokens"] == len(DATA) + 1  # and the end token
    assert not any("\ufffd" in chunk["text"] for chunk in streamed(server, **fields))


def test_a_limit_in_the_middle_of_a_character(server: Server, prompt: Prompts) -> None:
    for limit in range(1, len("한🙂é".encode()) + 1):
        data = "한🙂é".encode()
        whole = both(server, prompt=prompt(data), max_tokens=limit)
        assert whole["choices"][0]["text"] == data[:limit].decode("utf-8", errors="replace")
        assert whole["choices"][0]["finish_reason"] == "length"
        assert whole["usage"]["completion_tokens"] == limit


def test_a_space_behind_a_part_of_a_character(server: Server, prompt: Prompts) -> None:
    whole = both(server, prompt=prompt("🙂".encode()[:2] + b" x"), max_tokens=9)
    assert whole["choices"][0]["text"] == "\ufffd x"


@pytest.mark.parametrize("before", range(8))
def test_everything_ends_at_the_token_that_completes_a_stop(
    server: Server, prompt: Prompts, before: int
) -> None:
    """Whatever place of a block the stop is at: text, tokens, log probabilities and counts."""
    fields = {
        "prompt": prompt(b"." * before + "é!".encode() + b"and more"),
        "stop": ["é!"],
        "max_tokens": 40,
        "logprobs": 2,
    }
    whole = both(server, **fields)
    (choice,) = whole["choices"]
    assert choice["text"] == "." * before
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["tokens"]) == before + 3
    assert whole["usage"]["completion_tokens"] == before + 3
    parts = [chunk["logprobs"] for chunk in streamed(server, **fields) if chunk["logprobs"]]
    assert sum(len(part["tokens"]) for part in parts) == before + 3


@pytest.mark.parametrize("before", range(8))
def test_a_near_miss_is_shown_whole_and_once(server: Server, prompt: Prompts, before: int) -> None:
    text = "." * before + "DEFX and DEFG"
    fields = {"prompt": prompt(text.encode()), "stop": "DEFGHIJ", "max_tokens": 60}
    assert both(server, **fields)["choices"][0]["text"] == text


def test_a_stop_string_waits_for_min_tokens(server: Server, prompt: Prompts) -> None:
    fields = {"prompt": prompt(b"a.b.c.d"), "stop": ".", "max_tokens": 20}
    texts = [both(server, **fields, min_tokens=least)["choices"][0]["text"] for least in range(8)]
    assert texts == ["a", "a", "a.b", "a.b", "a.b.c", "a.b.c", "a.b.c.d", "a.b.c.d"]


@pytest.mark.parametrize("before", range(8))
def test_the_end_of_a_thought_anywhere_in_a_block(server: Server, before: int) -> None:
    thought = "x " * before + "hm"
    fields = {
        "messages": [{"role": "user", "content": f"{thought}</think>y = z"}],
        "temperature": 0,
        "stop": ["=", "k>y"],
        "thinking": {"type": "enabled"},
    }
    (choice,) = server.post("/v1/chat/completions", fields).json()["choices"]
    assert choice["message"]["reasoning_content"] == thought
    assert choice["message"]["content"] == "y "
    events = server.events("/v1/chat/completions", **fields)[:-1]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == thought
    assert "".join(delta.get("content", "") for delta in deltas) == "y "


def test_a_damaged_encoder_file_costs_chat_alone(tmp_path: Path) -> None:
    """The scripted engine reads no weights, so a folder without them will do."""
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(BUILTIN / "deskside-mini" / name, tmp_path)
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "encoding_dsv4.py").write_text("REASONING_EFFORT_PROMPTS = run()")
    with serving("--kv-tokens", "1024", "--model", str(tmp_path)) as server:
        assert server.complete(prompt=[0, 100], max_tokens=1)["usage"]["completion_tokens"] == 1
        fields = {"messages": [{"role": "user", "content": "hi"}]}
        for path in ("/v1/chat/completions", "/render"):
            answer = server.post(path, fields)
            assert answer.status_code == 400, answer.text
            told = answer.json()["error"]["message"]
            assert "encoding_dsv4.py: REASONING_EFFORT_PROMPTS must be a dict" in told
            assert "\n" not in told
