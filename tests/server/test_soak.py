"""Ten minutes of everything, behind ten more, leave nothing: no page, slot, file, thread, memory.

`--seconds N` makes it shorter. Memory is what all processes hold while nothing runs, once a round;
its slope is the median of the slopes between any two rounds. What grows up to a bound is filled
before: pages, snapshots, ids of answers, words that the tokenizer remembers, numpy's freed blocks
(up to seven of every size under 1 KiB), and what allocators keep of thousands of requests.
"""

import itertools
import json
import random
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.server.double import Act
from tests.server.rig import Server, serving
from tests.server.test_tools import BLOCK, TOOLS

ROUND_SECONDS = 5.0
HURRY_SECONDS = 90.0
"""Of requests without pauses: thousands, behind which allocators need no more."""
WARM_SECONDS = 480.0
"""Of requests like those that are measured: allocators take new pages ever more seldom."""
KV_TOKENS = 8192
WORDS = range(1, 901)
"""Lengths of the words that are said: the tokenizer remembers each of them, up to 10,000."""
SHORT = 5000
"""Requests of the test of files and threads."""
ROWS = range(2, 260)
"""Lengths of prompts, and so rows of steps: each has arrays of its own sizes."""
SLOPE = 1.0
"""MiB an hour that all processes together may grow."""
PROBE = {"prompt": [0, *range(300, 340)], "max_tokens": 30, "temperature": 0.5, "seed": 7}


Ask = Callable[[random.Random], tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    files: int
    threads: int
    memory: float
    """Resident MiB."""

    @staticmethod
    def by(process: int) -> "Held":
        folder = Path(f"/proc/{process}")
        lines = (folder / "status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        files = len(list((folder / "fd").iterdir()))
        return Held(files, int(status["Threads"]), int(status["VmRSS"].split()[0]) / 1024)


def completion(draw: random.Random) -> tuple[str, dict[str, Any]]:
    kind = draw.random()
    act = Act.NAN if kind > 0.95 else Act.LOOP if kind < 0.3 else 0
    return "/v1/completions", {
        "prompt": [act, 0, *draw.choices(range(300, 900), k=20)],
        "max_tokens": draw.randint(1, 60),
        "temperature": draw.choice([0, 1.0]),
        "n": draw.choice([1, 1, 3]),
        "stream": draw.random() < 0.7,
        "stop": draw.choice([None, "e", " the"]),
        "logprobs": draw.choice([None, None, 2]),
        "echo": draw.random() < 0.2,
    }


def talk(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a conversation of any API: some call a tool, some share their beginning."""
    said = draw.choice(["so" + BLOCK, "why</think>so", "slowly " * 20, "x" * draw.choice(WORDS)])
    shared = {"role": "user", "content": "the same words at the start of many talks " * 10}
    messages = [shared, {"role": "assistant", "content": "yes"}] * draw.randint(0, 1)
    messages = [*messages, {"role": "user", "content": said}]
    stream = draw.random() < 0.7
    match draw.randrange(3):
        case 0:
            fields: dict[str, Any] = {"messages": messages, "tools": draw.choice([None, TOOLS])}
            return "/v1/chat/completions", {**fields, "stream": stream, "max_tokens": 60}
        case 1:
            fields = {"model": "deskside-mini", "messages": messages, "stream": stream}
            return "/v1/messages", {**fields, "max_tokens": 60}
        case _:
            return "/v1/responses", {"input": messages, "stream": stream, "max_output_tokens": 60}


def anything(draw: random.Random) -> tuple[str, dict[str, Any]]:
    return (completion if draw.random() < 0.6 else talk)(draw)


def at_once(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """Return the same without what makes the engine's steps slow."""
    path, fields = anything(draw)
    while "slowly" in json.dumps(fields):
        path, fields = anything(draw)
    if fields.get("prompt", [0])[0] == Act.LOOP:
        fields["prompt"] = fields["prompt"][1:]
    return path, fields


def _client(server: Server, seed: int, until: float, faults: list[str], asks: Ask) -> None:
    draw = random.Random(seed)
    with httpx.Client(timeout=60, trust_env=False, verify=False) as client:
        while time.monotonic() < until:
            path, fields = asks(draw)
            try:
                with client.stream("POST", server.url + path, json=fields) as answer:
                    if answer.status_code not in (200, 429, 500):
                        faults.append(f"{path} {json.dumps(fields)} {answer.read().decode()}")
                    for _ in answer.iter_lines():
                        if draw.random() < 0.03:
                            break  # leaves in the midst
            except httpx.HTTPError as error:
                faults.append(repr(error))


def slope(points: list[tuple[float, float]]) -> float:
    """Return the median slope between any two points, in units an hour."""
    pairs = itertools.combinations(points, 2)
    return statistics.median((y - x) / (b - a) * 3600 for (a, x), (b, y) in pairs)


def fill(server: Server) -> None:
    """Fill what keeps something of prompts and answers, so that each new thing takes an old place.

    Answers repeat what was said: 900 ids each, and 4 for each token of KV are kept.
    """
    for length in WORDS:
        server.post("/render", {"messages": [{"role": "user", "content": "x" * length}]})
    for rows in ROWS:
        server.complete(prompt=[*range(300, 300 + rows)], max_tokens=1)
    for place in range(4 * KV_TOKENS // 900 + 4):
        said = f"{place}" + " to and fro" * 450
        body = {"messages": [{"role": "user", "content": said}], "max_tokens": 1000}
        answer = server.post("/v1/chat/completions", {**body, "temperature": 0})
        assert answer.json()["usage"]["completion_tokens"] > 900, answer.text


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_minutes_leave_nothing_behind(seconds: float) -> None:
    options = ("--kv-tokens", str(KV_TOKENS), "--max-running", "8", "--speculation", "3")
    with serving(*options) as server:
        processes = (server.process.pid, server.worker())
        want = server.complete(**PROBE)["choices"][0]["text"]
        free = server.wait_idle()
        faults: list[str] = []
        fill(server)
        for asks, length in ((at_once, HURRY_SECONDS), (anything, WARM_SECONDS)):
            until = time.monotonic() + length
            while time.monotonic() < until:
                _round(server, faults, asks)
        before = [Held.by(process) for process in processes]
        begun, memory, each = time.monotonic(), [], []
        while time.monotonic() - begun < seconds:
            _round(server, faults)
            assert server.complete(**PROBE)["choices"][0]["text"] == want
            left = server.wait_idle()
            assert (left["free_pages"], left["free_slots"]) == (
                free["free_pages"],
                free["free_slots"],
            )
            each.append([Held.by(process).memory for process in processes])
            memory.append((time.monotonic() - begun, sum(each[-1])))
        assert faults == []
        time.sleep(1)
        for process, was in zip(processes, before, strict=True):
            now = Held.by(process)
            assert abs(now.files - was.files) <= 3
            assert abs(now.threads - was.threads) <= 3
        print("MiB of each process, first, in the middle and last:")
        print(each[0], each[len(each) // 2], each[-1], f"slope {slope(memory):.2f} an hour")
        assert slope(memory) < SLOPE, [round(one, 3) for _, one in memory]


def _finished(server: Server) -> float:
    lines = server.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("deskside_requests_finished_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_thousand_short_requests_leave_files_and_threads_as_they_were() -> None:
    with serving("--max-running", "8") as server:
        processes = (server.process.pid, server.worker())

        def ask(count: int) -> None:
            for _ in range(count):
                server.complete(prompt=[*range(300, 310)], max_tokens=2)

        def together(count: int) -> None:
            clients = [threading.Thread(target=ask, args=(count // 8,)) for _ in range(8)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()

        together(80)  # opens the connections that stay
        before = [Held.by(process) for process in processes]
        together(SHORT)
        server.wait_idle()
        assert _finished(server) == SHORT + 80
        for process, was in zip(processes, before, strict=True):
            now = Held.by(process)
            assert abs(now.files - was.files) <= 3
            assert abs(now.threads - was.threads) <= 3


def _round(server: Server, faults: list[str], asks: Ask = anything) -> None:
    until = time.monotonic() + ROUND_SECONDS
    seed = round(until * 1000)  # no two rounds are alike
    clients = [
        threading.Thread(target=_client, args=(server, seed + place, until, faults, asks))
        for place in range(3)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    server.wait_idle()
