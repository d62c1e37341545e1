"""Crowds by their figures: more requests than places, bombs of JSON, two hundred slow senders."""

import json
import random
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.server.double import Act
from tests.server.rig import Server, serving
from tests.server.wires import answer, drop, send

CROWD, PLACES = 200, 9
REFUSAL_MS = 100.0
GROWTH_MIB = 20.0
ANSWER_SECONDS = 30.0


def resident(process: int) -> float:
    """Return the resident MiB of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def connections(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(count)]


@pytest.fixture(scope="module")
def narrow() -> Iterator[Server]:
    """One that runs one request and lets eight wait."""
    with serving("--kv-tokens", "8192", "--max-running", "1", "--max-queue", "8") as running:
        yield running


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_hundred_at_once_for_nine_places(narrow: Server, strict: bool) -> None:
    """Every refusal is quick; on a machine that others keep busy, half of them must be."""
    fields = {"prompt": [Act.LOOP, 0, 300], "max_tokens": 60, "temperature": 0}
    want = narrow.complete(**{**fields, "max_tokens": 60})["choices"][0]["text"]
    processes = (narrow.process.pid, narrow.worker())
    before = [resident(process) for process in processes]
    logged = len(narrow.log.read_text())
    wires = connections(narrow.port, CROWD)
    for wire in wires:
        send(wire, fields)
    with ThreadPoolExecutor(CROWD) as pool:
        answers = list(pool.map(answer, wires))
    served = [body for status, _, body in answers if status == 200]
    refused = [headers for status, headers, _ in answers if status == 429]
    assert (len(served), len(refused)) == (PLACES, CROWD - PLACES)
    assert all(int(headers["retry-after"]) >= 1 for headers in refused)
    assert {json.loads(body)["choices"][0]["text"] for body in served} == {want}
    for wire in wires:
        wire.close()
    took = refusals(narrow.log.read_text()[logged:])
    assert (max(took) if strict else statistics.median(took)) < REFUSAL_MS
    narrow.wait_idle()
    for process, held in zip(processes, before, strict=True):
        assert resident(process) - held < GROWTH_MIB


def refusals(log: str) -> list[float]:
    """Return the milliseconds that each refusal took by the service's own clock."""
    lines = [line.split() for line in log.splitlines() if " 429 " in line]
    return [float(words[words.index("429") + 1]) for words in lines]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_a_full_queue_hangs_nobody(narrow: Server, rounds: int) -> None:
    """Crowds, a third of which leaves again: everybody else has an answer, and all is 0 again."""
    draw = random.Random(5)
    free = narrow.wait_idle()
    for _ in range(rounds):
        wires = connections(narrow.port, CROWD)
        stay = []
        for wire in wires:
            tokens = draw.randint(1, 12)
            send(wire, {"prompt": [Act.LOOP, 0, 300], "max_tokens": tokens, "temperature": 0})
            if draw.random() < 1 / 3:
                drop(wire, draw.choice(["close", "reset"]))
            else:
                stay.append(wire)
        begun = time.monotonic()
        with ThreadPoolExecutor(len(stay)) as pool:
            statuses = {status for status, _, _ in pool.map(answer, stay)}
        assert time.monotonic() - begun < ANSWER_SECONDS
        assert statuses <= {200, 429}
        for wire in stay:
            wire.close()
        left = narrow.wait_idle()
        assert (left["running"], left["waiting"]) == (0, 0)
        assert (left["free_pages"], left["free_slots"]) == (free["free_pages"], free["free_slots"])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--kv-tokens", "8192", "--max-running", "4") as running:
        yield running


@contextmanager
def lag(server: Server) -> Iterator[list[float]]:
    """Yield a list into which the seconds of every live probe come, one after the other."""
    found: list[float] = []
    over = threading.Event()

    def probe() -> None:
        while not over.is_set():
            begun = time.monotonic()
            assert server.get("/health/live").status_code == 200
            found.append(time.monotonic() - begun)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(probe)
        try:
            yield found
        finally:
            over.set()
            done.result()


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
NESTED: Any = {"$ref": "#/$defs/a"}
BOMBS: dict[str, tuple[str, bytes]] = {
    "nesting": (TEXT, b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "nested objects": (CHAT, b'{"messages": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001),
    "messages": (CHAT, b'{"messages": [' + b"{}," * 999_999 + b"{}]}"),
    "a stop string": (TEXT, b'{"prompt": "a", "stop": "' + b"x" * 10_000_000 + b'"}'),
    "stop strings": (TEXT, json.dumps({"prompt": "a", "stop": ["x"] * 10_000}).encode()),
    "prompts": (TEXT, json.dumps({"prompt": ["x"] * 100_000}).encode()),
    "token ids": (TEXT, json.dumps({"prompt": list(range(300, 1500)) * 1000}).encode()),
    "a token id that is none": (TEXT, json.dumps({"prompt": [1] * 1_200_000 + [-1]}).encode()),
    "numbers for tools": (
        CHAT,
        json.dumps({"messages": [{}], "tools": [1] * 1_200_000}).encode(),
    ),
    "numbers for items": ("/v1/responses", json.dumps({"input": [1] * 1_200_000}).encode()),
    "biases": (
        TEXT,
        json.dumps({"prompt": "a", "logit_bias": dict.fromkeys(range(500_000), 1)}).encode(),
    ),
    "a pattern": (
        TEXT,
        json.dumps({"prompt": "a", "guided_regex": "(a{1,9999}){1,9999}" * 1000}).encode(),
    ),
    "a grammar": (
        TEXT,
        json.dumps({"prompt": "a", "guided_grammar": "root ::= root\n" * 10_000}).encode(),
    ),
}
BOMB_SECONDS, LAG_SECONDS = 2.0, 0.2


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_while_others_are_served(server: Server, name: str) -> None:
    """The best of three times counts: on a busy machine a probe may wait for others' work."""
    took, lags = zip(*(thrown(server, *BOMBS[name]) for _ in range(3)), strict=True)
    assert min(took) < BOMB_SECONDS
    assert min(lags) < LAG_SECONDS
    assert server.complete(prompt=[0, 300, 301], max_tokens=5)["usage"]["completion_tokens"] == 3


def thrown(server: Server, path: str, body: bytes) -> tuple[float, float]:
    """Return the seconds of a refusal, and the longest of a live probe beside it."""
    with lag(server) as probes:
        time.sleep(0.1)
        begun = time.monotonic()
        refused = server.client.post(
            server.url + path, content=body, headers={"content-type": "application/json"}
        )
        took = time.monotonic() - begun
        time.sleep(0.1)
    assert refused.status_code == 400, refused.text[:300]
    assert len(refused.content) < 5_000
    return took, max(probes)


SENDERS = 200


def first_token(server: Server) -> float:
    """Return the seconds to the first token of a stream whose steps take a while."""
    body = {"prompt": [Act.SLOW, 0, 300, 301], "max_tokens": 1, "stream": True, "temperature": 0}
    begun = time.monotonic()
    with server.client.stream("POST", server.url + TEXT, json=body) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                return time.monotonic() - begun
    raise AssertionError("no token")


@contextmanager
def slow_senders(server: Server) -> Iterator[list[socket.socket]]:
    """Two hundred connections, half within headers and half within a body, a byte a second."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    wires = connections(server.port, SENDERS)
    for place, wire in enumerate(wires):
        wire.sendall(head + (b"Content-Length: 500\r\n\r\n{" if place % 2 else b"X-Slow: "))
    over = threading.Event()

    def trickle() -> None:
        while not over.wait(1.0):
            for wire in wires:
                with suppress(OSError):  # cut off, as it should be
                    wire.send(b" ")

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(trickle)
        try:
            yield wires
        finally:
            over.set()
            done.result()
            for wire in wires:
                wire.close()


def closed_after(wire: socket.socket, begun: float) -> float:
    try:
        while wire.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - begun


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_slow_senders_are_cut_and_slow_nobody(seconds: int) -> None:
    options = () if seconds == 30 else ("--receive-timeout", str(seconds))  # 30 is the default
    with serving("--kv-tokens", "8192", "--max-running", "4", *options) as server:
        for _ in range(5):
            first_token(server)
        count = 8 * seconds
        before = [first_token(server) for _ in range(count)]
        with slow_senders(server) as wires:
            begun = time.monotonic()
            during = [first_token(server) for _ in range(count)]
            assert time.monotonic() - begun < seconds, "they must still be there"
            with ThreadPoolExecutor(SENDERS) as pool:
                times = list(pool.map(lambda wire: closed_after(wire, begun), wires))
        after = [first_token(server) for _ in range(count)]
    assert all(seconds - 1 <= one < seconds + 5 for one in times), sorted(times)[:: SENDERS - 1]
    if seconds == 30:  # two seconds of a busy machine say nothing about a tenth
        alone = statistics.median(before + after)
        assert statistics.median(during) < 1.1 * alone, (statistics.median(during), alone)
