"""A fault in one rank of several: all of them end, every stream is told, and nothing is left."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deskside.injection import Site
from tests.server.ending import Reader, children, ends, gone, injected
from tests.server.rig import END_SECONDS, Server, serving, started

TOGETHER = (Site.DRAFT, Site.RESERVE, Site.INPUTS, Site.FORWARD, Site.EXPERTS)
"""Sites that both ranks pass, between which nothing may be tried again."""
FOLLOWED = (*TOGETHER, Site.COMMIT)
"""Sites of the rank that follows: what it cannot do it cannot tell."""
LED = (Site.SUBMIT, Site.ADMIT, Site.SAMPLE, Site.STOP, Site.COMMIT, Site.LEARN)
"""Sites of the leader alone, where a fault costs one request as with one rank."""
LOADING = (Site.READ, Site.BANK, Site.STATE)
ELSEWHERE = {
    Site.LOGITS: "NaN: its request is lost, below",
    Site.EVENT: "test_life.py: the same with one rank",
    Site.QUEUE: "test_sites.py: in the HTTP process",
    Site.TEXT: "test_sites.py: in the HTTP process",
    Site.WRITE: "test_sites.py: in the HTTP process",
}
RANK_TIMEOUT = 3.0
QUICK = {("forward@1", "memory"), ("draft", "error"), ("forward@1", "hang")}
"""Those that the fast suite has time for."""
AFTER = {Site.EXPERTS: 400}
"""Passes before a fault comes: more than a start takes, so that streams are open."""
FIELDS = {"prompt": "x = 1\n", "max_tokens": 4000, "ignore_eos": True, "temperature": 0}


@contextmanager
def two_ranks(*options: str) -> Iterator[Server]:
    with serving(
        *("--tp", "2", "--threads", "1", "--kv-tokens", "16384", "--speculation", "3"),
        *("--fallback-threshold", "0", "--rank-timeout", f"{RANK_TIMEOUT:g}", *options),
        scripted=False,
    ) as server:
        yield server


def streams(server: Server) -> list[Reader]:
    readers = [Reader(server, **FIELDS) for _ in range(3)]
    assert all(reader.first.wait(60) for reader in readers)
    return readers


def test_every_site_has_its_test() -> None:
    assert {*FOLLOWED, *LED, *LOADING, *ELSEWHERE} == set(Site)


def cases() -> list[object]:
    walked = [(site.name.lower() + "@1", act) for site in FOLLOWED for act in ("memory", "error")]
    walked += [("forward@1", "kill"), ("forward@1", "hang"), ("forward@0", "hang")]
    walked += [(site.name.lower(), act) for site in TOGETHER for act in ("memory", "error")]
    return [
        pytest.param(
            *(where, act),
            marks=[] if (where, act) in QUICK else [pytest.mark.slow],
            id=f"{where}-{act}",
        )
        for where, act in walked
    ]


@pytest.mark.parametrize(("where", "act"), cases())
def test_a_fault_in_what_ranks_do_together_ends_all(where: str, act: str) -> None:
    after = AFTER.get(Site[where.partition("@")[0].upper()], 60)
    alone = (where, act) == ("forward@0", "hang")  # the leader: no rank can say so, the service can
    watched = ("--watchdog", f"{RANK_TIMEOUT:g}") if alone else ()
    with two_ranks("--test-faults", f"{where}:{act}:{after}:0", *watched) as server:
        readers = [Reader(server, **FIELDS) for _ in range(3)]
        late = RANK_TIMEOUT if act == "hang" else 0.0
        code = ends(server, readers, lambda: injected(server), ready_after=late, noticed_after=late)
        assert code == 4
        assert all(reader.first.is_set() for reader in readers), "streams were open"
        line = server.log.read_text().splitlines()[-1]
        assert ("--watchdog" if alone else "rank") in line


@pytest.mark.parametrize(
    ("how", "idle"),
    [
        pytest.param(signal.SIGKILL, False, id="dies"),
        pytest.param(signal.SIGKILL, True, marks=pytest.mark.slow, id="dies-idle"),
        pytest.param(signal.SIGSTOP, False, marks=pytest.mark.slow, id="held"),
    ],
)
def test_a_rank_that_dies_or_is_held_ends_all(how: signal.Signals, idle: bool) -> None:
    with two_ranks() as server:
        (follower,) = children(server.worker())
        readers = [] if idle else streams(server)
        late = RANK_TIMEOUT if how is signal.SIGSTOP else 0.0
        code = ends(server, readers, lambda: os.kill(follower, how), noticed_after=late)
        assert code == 4
        assert "rank 1" in server.log.read_text().splitlines()[-1]


@pytest.mark.slow
def test_a_rank_that_is_held_while_idle_is_not_ready_until_it_goes_on() -> None:
    with two_ranks() as server:
        (follower,) = children(server.worker())
        os.kill(follower, signal.SIGSTOP)
        assert server.get("/health/ready").json()["error"]["code"] == "engine_dead"
        os.kill(follower, signal.SIGCONT)
        assert server.get("/health/ready").status_code == 200
        server.complete(prompt="x = ", max_tokens=4)


@pytest.mark.slow
def test_what_the_leader_does_alone_costs_one_request() -> None:
    with two_ranks("--test-faults", "later") as server:
        want = server.complete(prompt="x = ", max_tokens=24)["choices"][0]["text"]
        free = server.wait_idle()
        for site in LED:
            arm(server, f"{site.value}:memory:{0 if site in (Site.SUBMIT, Site.ADMIT) else 4}:1")
            refused = server.post("/v1/completions", {"prompt": "x = ", "max_tokens": 24})
            assert refused.status_code == 500, site
            assert refused.json()["error"]["code"] == "out_of_memory"
            arm(server)
            assert server.complete(prompt="x = ", max_tokens=24)["choices"][0]["text"] == want
        arm(server, "logits:nan:4:1")
        spoiled = server.post("/v1/completions", {"prompt": "x = ", "max_tokens": 24})
        assert spoiled.json()["error"]["code"] == "nan_logits"
        assert server.complete(prompt="x = ", max_tokens=24)["choices"][0]["text"] == want
        left = server.wait_idle()
        assert (left["free_pages"], left["free_slots"]) == (free["free_pages"], free["free_slots"])
        refused = server.post("/admin/faults", {"faults": ["forward@1:memory"]})
        assert refused.status_code == 400


def arm(server: Server, *faults: str) -> None:
    answer = server.post("/admin/faults", {"faults": list(faults)})
    assert answer.status_code == 200, answer.text


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("site", LOADING, ids=lambda site: site.name)
def test_a_rank_without_memory_ends_the_start(site: Site, rank: int) -> None:
    options = ("--tp", "2", "--threads", "1", "--kv-tokens", "1024", "--rank-timeout", "3")
    fault = f"{site.value}@{rank}:memory"
    with started(*options, "--test-faults", fault, scripted=False) as server:
        assert server.process.wait(END_SECONDS * 2) == (4 if rank else 1)
        log = server.log.read_text()
        assert f"injected at site {site.value}" in log
        assert log.splitlines()[-1].startswith("deskside: error: ")
        assert server.run_folders() == []


LOAD = ("--tp", "2", "--threads", "1", "--kv-tokens", "1024")


def test_a_rank_that_does_not_finish_its_load_ends_the_start() -> None:
    options = (*LOAD, "--rendezvous-timeout", "5")
    with started(*options, "--test-faults", f"{Site.READ.value}@1:hang", scripted=False) as server:
        injected(server)
        worker = server.worker()
        processes = [worker, *children(worker)]
        assert server.get("/health/ready").status_code == 503
        assert server.process.wait(5 + END_SECONDS) == 4
        last = server.log.read_text().splitlines()[-1]
        assert last.startswith("deskside: error: ")
        assert "rank 1" in last
        assert "--rendezvous-timeout" in last
        assert all(gone(process, 1.0) for process in processes)
        assert server.run_folders() == []


@pytest.mark.slow
def test_a_rank_that_is_late_is_waited_for() -> None:
    fault = f"{Site.READ.value}@1:slow:0:40"
    with serving(*LOAD, "--test-faults", fault, scripted=False) as server:
        assert server.log.read_text().count("injected at site") == 40
        assert server.complete(prompt="x = 1\n", max_tokens=4)["choices"][0]["text"]
