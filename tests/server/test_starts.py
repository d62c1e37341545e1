"""Starts, many times: the first request that is let in is served, and a killed parent leaves none.

The fast suite has one or two rounds; the slow one a hundred starts and two hundred kills.
"""

import random
import socket
import time

import pytest

from tests.server.ending import children, gone
from tests.server.rig import END_SECONDS, started

POLL_SECONDS = 0.05
PORT_SECONDS = 1.0
LATEST = 2.5
"""Seconds after which the parent is killed at the latest: it serves by then."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("starts", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_who_is_told_that_it_is_ready_is_served(starts: int) -> None:
    for _ in range(starts):
        with started("--kv-tokens", "1024") as server:
            percents = []
            while (answer := server.get("/health/ready")).status_code == 503:
                percents.append(answer.json()["percent"])
                time.sleep(POLL_SECONDS)
            assert answer.status_code == 200
            done = server.complete(prompt=[0, 300, 301], max_tokens=5)
            assert done["usage"]["completion_tokens"] == 3
            assert percents == sorted(percents)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_a_parent_that_is_killed_at_any_time_leaves_nobody(kills: int) -> None:
    draw = random.Random(25)
    for _ in range(kills):
        with started("--kv-tokens", "1024") as server:
            time.sleep(draw.uniform(0, LATEST))
            own = children(server.process.pid)
            server.process.kill()
            server.process.wait(END_SECONDS)
            assert all(map(gone, own))
            _can_be_bound(server.port)


def _can_be_bound(port: int) -> None:
    end = time.monotonic() + PORT_SECONDS
    while True:
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                again.bind(("127.0.0.1", port))
                return
            except OSError:
                assert time.monotonic() < end, "the port is held"
        time.sleep(0.02)
