"""`deskside chat` in a pseudo-terminal, and what `status` and `requests` say of a service."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deskside.cli import main
from tests.server.rig import ROOT, Server, serving

KEY = "a-key-of-ours"
SECONDS = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--kv-tokens", "4096", environ={"DESKSIDE_API_KEY": KEY}) as running:
        running.client.headers["x-api-key"] = KEY
        yield running


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", wire: int) -> None:
        self.process, self.wire, self.text = process, wire, ""

    def type(self, text: str) -> None:
        os.write(self.wire, text.encode())

    def wait(self, pattern: str) -> str:
        """Read up to a pattern, and return what came with it."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            match = re.search(pattern, self.text)
            if match:
                shown, self.text = self.text[: match.end()], self.text[match.end() :]
                return shown
            if select.select([self.wire], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.wire, 65536).decode(errors="replace")
                except OSError:  # the other side is closed
                    break
        raise AssertionError(f"no {pattern!r} in {self.text!r}")


@contextmanager
def terminal(*words: str, **environ: str) -> Iterator[Terminal]:
    wire, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "deskside", "chat", *words],
        cwd=ROOT,
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**os.environ, "TERM": "dumb", "DESKSIDE_API_KEY": KEY, **environ},
        preexec_fn=os.setsid,
        # so that Ctrl-C of this terminal reaches this program alone
    )
    os.close(inner)
    try:
        yield Terminal(process, wire)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(SECONDS)
        os.close(wire)


def test_a_conversation(server: Server) -> None:
    with terminal("--server", server.url) as window:
        window.wait(r"deskside-mini at http.*\r\n> ")
        window.type("/temp 0\n")
        window.wait("temperature: 0")
        window.type("why</think>so\n")
        shown = window.wait(r"\d+ tokens \(\d+ of thought\).*\]")
        assert "\x1b[2mwhy\x1b[0m" in shown
        assert "\nso" in shown.replace("\r", "")
        window.type("/think off\n")
        window.wait("thinking: off")
        window.type("hello\n")
        window.wait(r"\nhello\r?\n")
        window.type("/system Be short.\n/temp\n/reset\n")
        window.wait("a new conversation\r?\n> ")
        window.type("\x04")
        assert window.process.wait(SECONDS) == 0
    server.wait_idle()


def test_an_interrupt_stops_the_answer_and_frees_its_pages(server: Server) -> None:
    free = server.wait_idle()["free_pages"]
    with terminal("--server", server.url) as window:
        window.wait("> ")
        window.type("/temp 0\n/think off\n")
        window.wait("thinking: off")
        window.type("slowly " + "on " * 400 + "\n")
        window.wait(r"\nslowly on on on")  # of the answer: a terminal shows the question too
        server.wait(lambda state: state["running"] == 1)
        os.kill(window.process.pid, 2)
        window.wait(r"\(stopped\)")
        assert server.wait_idle()["free_pages"] == free
        window.type("again\n")
        window.wait(r"\nagain\r?\n[\s\S]*\n> ")
        window.type("/quit\n")
        assert window.process.wait(SECONDS) == 0


def test_a_service_of_its_own(server: Server, tmp_path: Path) -> None:
    """Where nothing runs at the usual place, which may be taken on this machine."""
    config = tmp_path / "d.toml"
    config.write_text('kv-tokens = 1024\nspeculation = "off"\ndefault-max-tokens = 8\n')
    with terminal("--config", str(config), DESKSIDE_PORT="0", DESKSIDE_API_KEY="") as window:
        shown = window.wait(r"at http://127.0.0.1:\d+; /help")
        if "starting a service" not in shown:
            pytest.skip("a service runs at the usual place")
        children = Path(f"/proc/{window.process.pid}/task/{window.process.pid}/children")
        (child,) = map(int, children.read_text().split())
        window.type("hi\n")
        window.wait(r"\d+ tokens.*\r?\n> ")  # before its prompt a terminal may lose what is typed
        window.type("\x04")
        assert window.process.wait(SECONDS) == 0
        assert not Path(f"/proc/{child}").exists()


def test_status_and_requests(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    key = ["--server", server.url, "--api-key", KEY]
    assert main(["status", *key]) == 0
    said = capsys.readouterr().out
    assert f"service   {server.url}, ready" in said
    assert "model     deskside-mini, 4096 tokens of KV" in said
    assert main(["requests", *key]) == 0
    assert capsys.readouterr().out == "nothing runs or waits\n"
    body = {"messages": [{"role": "user", "content": "slowly " + "on " * 200}], "stream": True}
    with server.client.stream("POST", server.url + "/v1/chat/completions", json=body):
        assert main(["requests", "--json", *key]) == 0
        (one,) = json.loads(capsys.readouterr().out)
        assert main(["requests", *key]) == 0
        assert str(next(iter(one.values()))) in capsys.readouterr().out
    assert main(["status", "--json", *key]) == 0
    assert json.loads(capsys.readouterr().out)["version"]["model"] == "deskside-mini"
    assert main(["status", "--server", server.url, "--api-key", "wrong"]) == 2
    assert "the API key is wrong" in capsys.readouterr().err
    server.wait_idle()
