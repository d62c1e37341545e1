"""A service of its own for a test module, and a client that hides nothing."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
END_SECONDS = 30.0
READY = "ready to serve"


@dataclass
class Server:
    """A running service."""

    process: "subprocess.Popen[str]"
    port: int
    log: Path
    client: httpx.Client
    """Of all requests that say nothing else; making one takes longer than most requests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(self.url + path, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(self.url + path, json=body, **options)

    def complete(self, **fields: Any) -> dict[str, Any]:
        answer = self.post("/v1/completions", {"temperature": 0, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def events(self, path: str, **fields: Any) -> list[Any]:
        """Return what a stream says, DONE as a string."""
        body = {"stream": True, "temperature": 0, **fields}
        with self.client.stream("POST", self.url + path, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            return list(read_events(answer.iter_lines()))

    def state(self) -> dict[str, Any]:
        return self.get("/admin/requests").json()

    def wait_idle(self, seconds: float = 20.0) -> dict[str, Any]:
        """Wait until nothing is left, and return what is free."""
        return self.wait(
            lambda state: not (state["running"] or state["waiting"] or state["requests"]), seconds
        )

    def wait(
        self, condition: Callable[[dict[str, Any]], bool], seconds: float = 20.0
    ) -> dict[str, Any]:
        """Wait until the state of the service is such, and return it."""
        end = time.monotonic() + seconds
        while not condition(state := self.state()):
            assert time.monotonic() < end, f"still {state}"
            time.sleep(0.05)
        return state

    def worker(self) -> int:
        """Return the engine's process id."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        (child,) = map(int, text.split())
        return child

    def run_folders(self) -> list[Path]:
        """Return what the run has laid where temporary files go, which is its alone."""
        return list(self.log.parent.glob("deskside-run-*"))

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == READY + "\n", (line, self.log.read_text())

    def end(self) -> int:
        """End it by SIGTERM if it still runs, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_SECONDS)


def read_events(lines: Iterator[str]) -> Iterator[Any]:
    for line in lines:
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)
        else:
            assert line == "" or line.startswith(":"), line


@contextmanager
def started(
    *options: str, scripted: bool = True, environ: dict[str, str] | None = None
) -> Iterator[Server]:
    """Start a service that may still load; leaving ends it."""
    command = "tests.server.start" if scripted else "deskside"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", command, "serve", "--port", "0", *options],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "TMPDIR": folder, **(environ or {})},
            )
        try:
            with httpx.Client(timeout=60, trust_env=False, verify=False) as client:
                yield Server(process, _port(process, log), log, client)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            process.stdout.close()  # type: ignore[union-attr]


@contextmanager
def serving(
    *options: str, scripted: bool = True, environ: dict[str, str] | None = None
) -> Iterator[Server]:
    """Start a service and wait until it is ready."""
    with started(*options, scripted=scripted, environ=environ) as server:
        server.wait_ready()
        yield server


def _port(process: "subprocess.Popen[str]", log: Path) -> int:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines():
            if "listening on http://" in line:
                return int(line.rpartition(":")[2])
        time.sleep(0.02)
    raise AssertionError(f"no port: {log.read_text()}")
