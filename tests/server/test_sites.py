"""A fault at every numbered site of a service: one request is lost, and nothing else changes.

Three streams run when it happens. Those that are not lost bring the bytes that they bring alone,
and afterwards every page, slot and place is free again.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import pytest

from deskside.config.engine import EngineOptions
from deskside.config.server import ServerOptions
from deskside.errors import InputError
from deskside.injection import SERVER_SITES, Site
from deskside.server.serve import serve
from tests.server import double
from tests.server.rig import END_SECONDS, Server, serving, started

STREAMS = 3
EACH = (Site.SUBMIT, Site.ADMIT, Site.LEARN, Site.QUEUE, Site.TEXT)
"""Sites that one request passes alone."""
TOGETHER = (
    Site.DRAFT,
    Site.RESERVE,
    Site.INPUTS,
    Site.FORWARD,
    Site.LOGITS,
    Site.SAMPLE,
    Site.STOP,
    Site.COMMIT,
)
"""Sites that all requests of a step pass together; then each is tried alone."""
ELSEWHERE = {
    Site.READ: "while it loads, below",
    Site.BANK: "while it loads, below",
    Site.STATE: "while it loads, below",
    Site.EXPERTS: "tests/faults/test_sites.py: a script has no experts",
    Site.EVENT: "test_life.py: the end of the service",
    Site.WRITE: "a torn connection, below",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(
        *("--kv-tokens", "8192", "--max-running", "4", "--speculation", "3"),
        *("--test-faults", "later"),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def alone(server: Server) -> list[str]:
    return [str(stream(server, place)) for place in range(STREAMS)]


def fields(place: int) -> dict[str, Any]:
    prompt = [double.Act.LOOP, 0, *range(300 + place, 340 + place)]
    return {"prompt": prompt, "max_tokens": 160 + place, "temperature": 0.7, "seed": place}


def stream(server: Server, place: int) -> str | dict[str, Any]:
    """Return a stream's text, or what it says of its fault; a torn one says `torn`."""
    text = ""
    body = {"stream": True, **fields(place)}
    try:
        with server.client.stream("POST", server.url + "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                return dict(answer.json()["error"])
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    return text
                if line.startswith("data: "):
                    said = double_json(line)
                    if "error" in said:
                        return dict(said["error"])
                    text += said["choices"][0]["text"]
    except httpx.RemoteProtocolError:
        return {"code": "torn"}
    raise AssertionError("a quiet end")


def double_json(line: str) -> dict[str, Any]:
    return dict(httpx.Response(200, content=line.removeprefix("data: ")).json())


def arm(server: Server, *faults: str) -> None:
    answer = server.post("/admin/faults", {"faults": list(faults)})
    assert answer.status_code == 200, answer.text


def together(server: Server, fault: str) -> list[str | dict[str, Any]]:
    """Run all streams with a fault armed, and look at what is left."""
    free = server.wait_idle()
    site = Site(int(fault.partition(":")[0]))
    if site not in TOGETHER:
        arm(server, fault)
    with ThreadPoolExecutor(STREAMS) as pool:
        streams = [pool.submit(stream, server, place) for place in range(STREAMS)]
        if site in TOGETHER:  # in one step, not one after the other
            end = time.monotonic() + 20
            while server.state()["running"] < STREAMS and time.monotonic() < end:
                time.sleep(0.01)
            arm(server, fault)
        found = [one.result() for one in streams]
    arm(server)
    assert f"injected at site {site.value} " in server.log.read_text()
    left = server.wait_idle()
    assert (left["free_pages"], left["free_slots"]) == (free["free_pages"], free["free_slots"])
    return found


def lost_one(found: list[str | dict[str, Any]], alone: list[str]) -> dict[str, Any]:
    """Return the fault of the one that is lost; the others are whole."""
    lost = [one for one in found if isinstance(one, dict)]
    kept = [(one, want) for one, want in zip(found, alone, strict=True) if isinstance(one, str)]
    assert len(lost) == 1, found
    assert all(one == want for one, want in kept)
    return lost[0]


def test_every_site_has_its_test() -> None:
    assert {*EACH, *TOGETHER, *ELSEWHERE} == set(Site)


@pytest.mark.parametrize("act", ["memory", pytest.param("error", marks=pytest.mark.slow)])
@pytest.mark.parametrize("site", [*EACH, *TOGETHER], ids=lambda site: site.name)
def test_one_request_is_lost(server: Server, alone: list[str], site: Site, act: str) -> None:
    after = 1 if site in (Site.SUBMIT, Site.ADMIT, Site.QUEUE) else 5
    times = 1 if site in EACH else 2  # in company, then the first that is tried alone
    fault = lost_one(together(server, f"{site.value}:{act}:{after}:{times}"), alone)
    where = "internal_fault" if site in SERVER_SITES else "engine_fault"
    assert fault["code"] == ("out_of_memory" if act == "memory" else where)
    assert fault["type"] == "server_error"
    assert stream(server, 0) == alone[0]


@pytest.mark.parametrize("site", TOGETHER, ids=lambda site: site.name)
def test_what_passes_costs_nobody_anything(server: Server, alone: list[str], site: Site) -> None:
    assert together(server, f"{site.value}:memory:4:1") == alone


@pytest.mark.slow
@pytest.mark.parametrize("site", [*EACH, *TOGETHER], ids=lambda site: site.name)
def test_what_stays_costs_everybody_and_not_the_service(
    server: Server, alone: list[str], site: Site
) -> None:
    found = together(server, f"{site.value}:memory:0:0")
    assert [one["code"] for one in found if isinstance(one, dict)] == ["out_of_memory"] * STREAMS
    assert stream(server, 0) == alone[0]


def test_numbers_that_are_none_cost_one_request(server: Server, alone: list[str]) -> None:
    site = Site.LOGITS.value
    fault = lost_one(together(server, f"{site}:nan:5:2"), alone)
    assert fault["code"] == "nan_logits"


def test_a_torn_connection_costs_one_request(server: Server, alone: list[str]) -> None:
    fault = lost_one(together(server, f"{Site.WRITE.value}:tear:9:1"), alone)
    assert fault["code"] == "torn"


def test_a_write_that_fails_is_no_quiet_end(server: Server, alone: list[str]) -> None:
    assert lost_one(together(server, f"{Site.WRITE.value}:error:9:1"), alone)["code"] == "torn"


def test_slow_steps_change_nothing(server: Server, alone: list[str]) -> None:
    assert together(server, f"{Site.FORWARD.value}:slow:3:2") == alone


@pytest.mark.parametrize("site", [Site.READ, Site.BANK, Site.STATE], ids=lambda site: site.name)
def test_a_load_without_memory_ends_with_one_line(site: Site) -> None:
    options = ("--kv-tokens", "1024", "--test-faults", f"{site.value}:memory")
    with started(*options, scripted=False) as server:
        assert server.process.wait(END_SECONDS * 2) == 1
        line = server.log.read_text().splitlines()[-1]
        assert line.startswith("deskside: error: ")
        assert f"MemoryError: injected at site {site.value}" in line


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("forward", "SITE[@RANK]:ACT"),
        ("99:memory", "there are 1 read, 2 bank"),
        ("forward:explode", "there are memory, error"),
        ("forward:nan", "cannot happen at 9 (forward)"),
        ("logits:tear", "cannot happen"),
        ("text:hang", "cannot happen"),
        ("forward:memory:-1", "SITE[@RANK]:ACT"),
        ("forward:memory:1:1:1", "SITE[@RANK]:ACT"),
        ("forward@x:memory", "SITE[@RANK]:ACT"),
        ("forward@1:memory", "rank"),
    ],
)
def test_what_cannot_happen_is_refused(server: Server, fault: str, told: str) -> None:
    answer = server.post("/admin/faults", {"faults": [fault]})
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]
    with pytest.raises(InputError, match="--test-faults"):
        EngineOptions(test_faults=(fault,))


def test_nobody_else_can_let_faults_happen() -> None:
    with pytest.raises(InputError, match="--test-faults is for tests on this machine"):
        serve(
            "deskside-mini",
            EngineOptions(test_faults=("later",)),
            ServerOptions(host="0.0.0.0", port=0, open_to_all=True),
        )
    with serving("--kv-tokens", "1024") as plain:
        assert plain.post("/admin/faults", {"faults": []}).status_code in (404, 405)
        assert "/admin/faults" not in plain.get("/openapi.json").text
