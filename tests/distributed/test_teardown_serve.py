"""Whatever ends one process of a service of several ranks ends the service, and says which."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.distributed.test_teardown import (
    GONE_AFTER,
    KILL,
    PATIENCE,
    RANK_TIMEOUT,
    RANKS,
    STOP,
    TERM,
    alive,
    children,
    strike,
    until,
)

CASES = [
    # phase, who, signal, exit code
    ("idle", "follower", KILL, 4),
    ("reduction", "follower", KILL, 4),
]
SLOW = [
    ("load", "follower", KILL, 4),
    ("load", "follower", STOP, 4),
    ("load", "leader", KILL, 4),
    ("load", "parent", KILL, -KILL),
    ("load", "parent", TERM, 143),
    ("idle", "follower", STOP, 4),
    ("idle", "leader", KILL, 4),
    ("idle", "parent", KILL, -KILL),
    ("idle", "parent", TERM, 143),
    ("reduction", "follower", STOP, 4),
    ("decode", "leader", KILL, 4),
    ("decode", "parent", KILL, -KILL),
]


@dataclass
class Service:
    """A service and its ranks."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    leader: int
    follower: int

    @property
    def said(self) -> str:
        return (self.folder / "err").read_text()

    @property
    def port(self) -> int:
        (line,) = [line for line in self.said.splitlines() if "listening on http://" in line]
        return int(line.rpartition(":")[2])


@contextmanager
def served(folder: Path, phase: str) -> Iterator[Service]:
    """Serve with several ranks up to a phase; nothing of it is left afterwards."""
    command = [sys.executable, "-m", "deskside", "serve", "--port", "0", "--tp", str(RANKS)]
    command += ["--rank-timeout", str(RANK_TIMEOUT), "--speculation", "off", "--threads", "1"]
    command += ["--kv-tokens", "8192", "--drain-timeout", "0.1"]
    environ = {**os.environ, "TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environ)
    said = folder / "err"
    leader = follower = 0
    try:
        until(lambda: children(process.pid), f"no engine: {said.read_text()}")
        (leader,) = children(process.pid)
        until(lambda: children(leader), f"no rank: {said.read_text()}")
        (follower,) = children(leader)
        service = Service(process, folder, leader, follower)
        if phase == "load":
            yield service
            return
        until(lambda: b"ready to serve" in (folder / "out").read_bytes(), "not ready")
        if phase == "idle":
            yield service
            return
        with streaming(service.port):
            yield service
    finally:
        process.kill()
        process.wait()
        for pid in (leader, follower):
            assert not pid or not alive(pid), "nothing is left"


@contextmanager
def streaming(port: int) -> Iterator[None]:
    """Let a completion run that does not end by itself, from its first event on."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = {"prompt": "x = ", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    client.request(
        "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
    )
    answer = client.getresponse()
    assert answer.status == 200, answer.read()
    assert answer.readline()
    yield
    client.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("phase", "who", "number", "code"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_the_end_of_one_is_the_end_of_the_service(
    tmp_path: Path, phase: str, who: str, number: signal.Signals, code: int
) -> None:
    with served(tmp_path, phase) as service:
        pids = {"follower": service.follower, "leader": service.leader}
        victim = pids.get(who, service.process.pid)
        strike(victim, number, service.leader if phase == "reduction" else None, tmp_path)
        struck = time.monotonic()
        assert service.process.wait(PATIENCE) == code, service.said
        until(lambda: not any(map(alive, pids.values())), "a rank outlives it", GONE_AFTER)
        assert time.monotonic() - struck < GONE_AFTER + (RANK_TIMEOUT if number is STOP else 0)
        if code == 4:
            (line,) = [one for one in service.said.splitlines() if "deskside: error" in one]
            assert {"follower": "rank 1", "leader": "rank 0"}[who] in line, line
            assert "last seen: " in line
            assert phase != "reduction" or "in exchange" in line
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", service.port))
    if who != "parent" or number is TERM:
        assert not list(tmp_path.glob("deskside-run-*"))
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("deskside")]
