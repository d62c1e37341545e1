"""The end of a service that nobody asked for, by the clock: who is told what, and when."""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tests.server.rig import Server, read_events

READY_SECONDS, STREAM_SECONDS, GONE_SECONDS = 2.0, 5.0, 10.0
"""In which the service is not ready, streams have their error, and every process is gone."""


def gone(process: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


class Reader(threading.Thread):
    """Reads one stream to its end."""

    def __init__(self, server: Server, **fields: Any) -> None:
        super().__init__()
        self.server, self.fields = server, fields
        self.events: list[Any] = []
        self.first = threading.Event()
        self.ended = 0.0
        self.start()

    def run(self) -> None:
        body = {"stream": True, **self.fields}
        with self.server.client.stream(
            "POST", self.server.url + "/v1/completions", json=body
        ) as answer:
            for event in read_events(answer.iter_lines()):
                self.events.append(event)
                self.first.set()
        self.ended = time.monotonic()


def children(process: int) -> list[int]:
    """Return the children of a process's first thread."""
    return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]


def ready(server: Server) -> bool:
    """Whether the service says that it would serve a request."""
    try:
        return server.get("/health/ready", timeout=5).status_code == 200
    except httpx.TransportError:  # it is over
        return False


def ends(
    server: Server,
    readers: Sequence[Reader],
    cause: Callable[[], None],
    *,
    ready_after: float = 0.0,
    noticed_after: float = 0.0,
) -> int:
    """Let something end a service and hold all that follows against the clock.

    Args:
        server: it runs, and `readers` read from it.
        readers: have open streams.
        cause: returns when it has happened.
        ready_after: seconds in which nobody can know of it.
        noticed_after: seconds of the option that notices it.

    Returns:
        The exit code.
    """
    worker = server.worker()
    processes = [worker, *children(worker)]
    cause()
    begun = time.monotonic()
    while ready(server):
        assert time.monotonic() - begun < ready_after + READY_SECONDS, "still ready"
        time.sleep(0.02)
    for reader in readers:
        reader.join(noticed_after + GONE_SECONDS)
        assert not reader.is_alive(), "a stream hangs"
        assert reader.events[-1]["error"]["code"] == "engine_dead", reader.events[-1:]
        assert reader.ended - begun < noticed_after + STREAM_SECONDS
    code = server.process.wait(noticed_after + GONE_SECONDS)
    assert all(map(gone, processes)), "a process is left"
    assert time.monotonic() - begun < noticed_after + GONE_SECONDS
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", server.port))
    assert server.run_folders() == []
    assert not [name for name in os.listdir("/dev/shm") if "deskside" in name]
    assert server.log.read_text().splitlines()[-1].startswith("deskside: error: ")
    return code


def injected(server: Server, seconds: float = 60.0) -> None:
    """Wait until the log says that a fault was injected."""
    end = time.monotonic() + seconds
    while "injected at site" not in server.log.read_text():
        assert time.monotonic() < end, server.log.read_text()[-2000:]
        time.sleep(0.02)
