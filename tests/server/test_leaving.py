"""Who leaves holds nothing: in every phase of a request, in every way to leave, whole or stream.

The engine is made slow at one pass of one site, so that the client leaves in a phase that is known.
"""

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from deskside.injection import SLOW_SECONDS, Site
from tests.server.double import Act
from tests.server.rig import Server, serving
from tests.server.wires import drop, request

CHUNK = 64
CHUNKS = 5
NUMBERS = itertools.count()
FREE = ("free_pages", "free_slots")
TIMES = 20
MOST_STEPS = 3
ENDED = " POST /v1/completions "
"""Stands in the log once for each request, when the engine has been told of its end."""


@dataclass(frozen=True)
class Phase:
    """Where a request is when its client leaves: at which pass of a slow site, and how long."""

    site: Site
    passed: int
    tokens: int = 2000


PHASES = {
    "first chunk": Phase(Site.FORWARD, 0),
    "mid prefill": Phase(Site.FORWARD, CHUNKS // 2),
    "last chunk": Phase(Site.FORWARD, CHUNKS - 1),
    "decode": Phase(Site.FORWARD, CHUNKS + 2),
    "inside verify": Phase(Site.SAMPLE, CHUNKS + 3),
    "finished, not written": Phase(Site.EVENT, CHUNKS - 1, tokens=1),
}
WAYS = ("close", "reset", "half")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(
        *("--kv-tokens", "8192", "--max-running", "1", "--max-queue", "8"),
        *("--prefill-chunk", str(CHUNK), "--step-tokens", str(CHUNK), "--speculation", "2"),
        *("--test-faults", "later"),
    ) as running:
        yield running


def prompt() -> list[int]:
    """Return a prompt of five chunks that begins like no other: none of it is kept from before."""
    number = next(NUMBERS)
    return [Act.SLOW, 0, 300 + number % 1000, 300 + number // 1000, *[300] * (CHUNK * CHUNKS - 4)]


def leave(server: Server, phase: Phase, *, stream: bool, how: str) -> int:
    """Leave in a phase; return how many steps ended after the engine had been told."""
    free = server.wait_idle()
    arm(server, f"{phase.site.value}:slow:{phase.passed}")
    injected = server.log.read_text().count("injected at site")
    wire = request(server.port, {"prompt": prompt(), "max_tokens": phase.tokens, "stream": stream})
    end = time.monotonic() + 20
    while server.log.read_text().count("injected at site") == injected:
        assert time.monotonic() < end, "it came nowhere near"
        time.sleep(0.005)
    over = server.log.read_text().count(ENDED)
    drop(wire, how)
    while server.log.read_text().count(ENDED) == over:
        assert time.monotonic() < end, "nobody noticed that it left"
        time.sleep(0.001)
    at = server.state()["step"]
    left = server.wait_idle()
    assert [left[one] for one in FREE] == [free[one] for one in FREE]
    # The step that ran, the one that lets go of it, and on a busy machine one in between.
    assert left["step"] - at <= MOST_STEPS
    return int(left["step"] - at)


def leave_the_queue(server: Server, *, stream: bool, how: str) -> int:
    free = server.wait_idle()
    blocker = request(server.port, {"prompt": [Act.LOOP, 0, 100], "max_tokens": 4000})
    server.wait(lambda state: state["running"] == 1)
    wire = request(server.port, {"prompt": prompt(), "max_tokens": 100, "stream": stream})
    server.wait(lambda state: state["waiting"] == 1)
    drop(wire, how)
    state = server.wait(lambda state: state["waiting"] == 0)
    assert (state["running"], len(state["requests"])) == (1, 1)
    drop(blocker, "close")
    left = server.wait_idle()
    assert [left[one] for one in FREE] == [free[one] for one in FREE]
    return 0


def arm(server: Server, *faults: str) -> None:
    answer = server.post("/admin/faults", {"faults": list(faults)})
    assert answer.status_code == 200, answer.text


def cases() -> list[Any]:
    """Every phase both ways, with one way to leave each; the slow suite does all of them."""
    found = []
    for place, phase in enumerate(["queued", *PHASES]):
        for stream in (True, False):
            for turn, how in enumerate(WAYS):
                quick = turn == (place + stream) % len(WAYS)
                marks = [] if quick else [pytest.mark.slow]
                kind = "stream" if stream else "whole"
                found.append(
                    pytest.param(phase, stream, how, marks=marks, id=f"{phase}-{kind}-{how}")
                )
    return found


def once(server: Server, phase: str, *, stream: bool, how: str) -> int:
    if phase == "queued":
        return leave_the_queue(server, stream=stream, how=how)
    return leave(server, PHASES[phase], stream=stream, how=how)


@pytest.mark.parametrize(("phase", "stream", "how"), cases())
def test_who_leaves_holds_nothing(server: Server, phase: str, stream: bool, how: str) -> None:
    once(server, phase, stream=stream, how=how)
    done = server.complete(prompt=[0, 300, 301], max_tokens=5)
    assert done["usage"]["completion_tokens"] == 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_times_in_all_ways(server: Server) -> None:
    found = [
        once(server, phase, stream=stream, how=how)
        for phase in ("queued", *PHASES)
        for stream in (True, False)
        for how in WAYS
        for _ in range(TIMES)
    ]
    assert len(found) == 840
    print({steps: found.count(steps) for steps in set(found)})
    assert statistics.median(found) <= 2, "the step that ran, and the one that lets go"


def test_the_slow_step_is_long_enough_to_leave_in() -> None:
    assert SLOW_SECONDS >= 0.2
