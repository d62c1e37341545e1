"""What a service refuses, in which words and codes; and that it goes on afterwards."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from tests.server.rig import Server, serving
from tests.server.test_soak import Held

SCRIPT = [0, 100, 200, 300]
KV_TOKENS = 1024
MOST_GROWTH = 4.0
"""MiB by which a body that is refused may let the service grow."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(
        "--kv-tokens", str(KV_TOKENS), "--max-body", "200000", "--max-running", "4"
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def _unharmed(server: Server) -> Iterator[None]:
    """After every refusal a request brings what it brought before, and nothing is held."""
    free = server.wait_idle()
    yield
    done = server.complete(prompt=SCRIPT, max_tokens=3)
    assert done["usage"]["completion_tokens"] == 3
    assert server.wait_idle()["free_pages"] == free["free_pages"]


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    return answer.json()["error"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 100_000}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 3}, "min_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"stop": "x" * 100_000}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop_token_ids": [99_999]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"echo": "yes"}, "echo"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"suffix": "end"}, "suffix"),
        ({"response_format": {"type": "regex", "pattern": "(a"}}, "response_format"),
        ({"response_format": {"type": "regex", "pattern": "a"}, "ignore_eos": True}, "ignore_eos"),
        ({"guided_json": {}}, "guided_json"),
        ({"repeat_penalty": 1.1}, "repeat_penalty"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [99_999]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
    ],
)
def test_a_field_is_refused_by_name(
    server: Server, fields: dict[str, Any], param: str | None
) -> None:
    error = error_of(server.post("/v1/completions", {"prompt": SCRIPT, **fields}))
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me", "service_tier": "auto", "unheard_of": [1]},
        {"response_format": {"type": "text"}, "suffix": None, "tools": []},
        {"n": None, "stop": None, "logit_bias": None, "seed": None, "temperature": None},
    ],
)
def test_what_changes_nothing_is_taken(server: Server, fields: dict[str, Any]) -> None:
    answer = server.post("/v1/completions", {"prompt": SCRIPT, **fields})
    assert answer.status_code == 200, answer.text


def test_an_unknown_model_is_not_found(server: Server) -> None:
    error = error_of(server.post("/v1/completions", {"prompt": SCRIPT, "model": "gpt-9"}), 404)
    assert error["code"] == "model_not_found"
    assert error_of(server.get("/v1/models/gpt-9"), 404)["code"] == "model_not_found"
    for name in ("..%2f..%2fetc%2fpasswd", "%00", "../../etc/passwd"):
        assert server.get(f"/v1/models/{name}").status_code == 404


@pytest.mark.parametrize("prompt", [KV_TOKENS, KV_TOKENS + 1, KV_TOKENS - 4])
def test_what_never_fits_is_refused_with_both_numbers(server: Server, prompt: int) -> None:
    fields = {"prompt": [5] * prompt, "max_tokens": 5}
    error = error_of(server.post("/v1/completions", fields))
    assert error["code"] == "context_length_exceeded"
    assert f"{prompt} + 5 = {prompt + 5}" in error["message"]
    assert f"have {KV_TOKENS}" in error["message"]
    assert "--kv-tokens" in error["message"]


def test_what_just_fits_is_served(server: Server) -> None:
    done = server.complete(prompt=[0, *[5] * (KV_TOKENS - 6)], max_tokens=5)
    assert done["usage"]["total_tokens"] == KV_TOKENS


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"5",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": 1e400}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\xc0\x80"}',
        b'{"prompt": "\\ud800"}',
        b'\xef\xbb\xbf{"prompt": "a"}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"x": ' + b'{"x": ' * 3_000 + b"1" + b"}" * 3_001,
    ],
)
def test_a_body_that_is_no_json_object(server: Server, body: bytes) -> None:
    answer = server.client.post(
        server.url + "/v1/completions",
        content=body,
        headers={"content-type": "application/json"},
    )
    error_of(answer)


def test_a_nul_is_text(server: Server) -> None:
    assert server.complete(prompt="a\0b", max_tokens=2)["usage"]["completion_tokens"] == 2


def test_an_answer_is_valid_utf8_whatever_the_tokens_are(server: Server) -> None:
    ids = [0, *range(3, 259)]  # every single byte, in no order that makes text
    answer = server.post("/v1/completions", {"prompt": ids, "max_tokens": 256, "temperature": 0})
    text = json.loads(answer.content.decode("utf-8"))["choices"][0]["text"]
    assert "\ufffd" in text


def test_routes_and_methods(server: Server) -> None:
    assert error_of(server.get("/nothing"), 404)["code"] == "not_found"
    answer = server.get("/v1/completions")
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "path", ["/", "/health/live", "/v1/models", "/version", "/openapi.json", "/docs"]
)
def test_head_brings_the_headers_of_get(server: Server, path: str) -> None:
    got, head = server.get(path), server.client.head(server.url + path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-length"):
        assert head.headers[name] == got.headers[name]
    refused = server.post(path, {})
    assert error_of(refused, 405)["code"] == "method_not_allowed"
    assert refused.headers["allow"] == "GET, HEAD"


def test_head_where_there_is_no_get(server: Server) -> None:
    answer = server.client.head(server.url + "/v1/completions")
    assert (answer.status_code, answer.content) == (405, b"")
    assert answer.headers["allow"] == "POST"


def test_the_content_type_is_looked_at(server: Server) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        headers = {} if kind is None else {"content-type": kind}
        answer = server.client.post(server.url + "/v1/completions", content=b"{}", headers=headers)
        assert error_of(answer, 415)["code"] == "unsupported_media_type"


def test_a_large_body_is_not_read(server: Server) -> None:
    sent, before = 0, Held.by(server.process.pid).memory

    def body() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(4096):
            sent += 65_536
            yield b" " * 65_536

    try:
        answer = httpx.post(
            server.url + "/v1/completions",
            content=body(),
            headers={"content-type": "application/json"},
            timeout=30,
        )
        assert answer.status_code == 413
    except httpx.HTTPError:
        pass  # the connection closed while the client was still sending
    assert sent < 32 * 2**20
    assert Held.by(server.process.pid).memory - before < MOST_GROWTH
    declared = httpx.post(
        server.url + "/v1/completions",
        content=b" " * 300_000,
        headers={"content-type": "application/json"},
    )
    assert error_of(declared, 413)["code"] == "body_too_large"


def test_token_ids_that_do_not_exist(server: Server) -> None:
    assert error_of(server.post("/detokenize", {"tokens": [99_999]}))["param"] == "tokens"
    assert error_of(server.post("/detokenize", {"tokens": ["a"]}))["param"] == "tokens"
    assert error_of(server.post("/tokenize", {}))["param"] == "prompt"


def test_models_name_both_lengths(server: Server) -> None:
    (model,) = server.get("/v1/models").json()["data"]
    assert model["id"] == "deskside-mini"
    assert model["max_model_len"] == KV_TOKENS
    assert model["architecture_max_len"] == 32_768
    assert server.get("/v1/models/deskside-mini").json() == model
    assert server.get("/version").json()["kv_tokens"] == KV_TOKENS
    assert server.get("/openapi.json").json()["paths"]["/v1/completions"]["post"]
