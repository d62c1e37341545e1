"""The commands around a service that need none: configurations of agents, options, the talk."""

import io
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from deskside.cli import main
from deskside.client.chat import Chat
from deskside.client.connect import configuration
from deskside.client.show import requests_lines
from deskside.client.talk import Talk
from deskside.errors import InputError
from deskside.report.settings import settings_lines


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_configurations_of_agents(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--print", "--server", "http://desk:9000/", "--model", "mini"]
    codex = tomllib.loads(printed(capsys, "connect", "codex", *where))
    assert (codex["model"], codex["model_provider"]) == ("mini", "deskside")
    provider = codex["model_providers"]["deskside"]
    assert (provider["base_url"], provider["wire_api"]) == ("http://desk:9000/v1", "responses")
    code = json.loads(printed(capsys, "connect", "opencode", *where))
    assert code["provider"]["deskside"]["options"]["baseURL"] == "http://desk:9000/v1"
    assert code["model"] == "deskside/mini"
    claude = printed(capsys, "connect", "claude", *where).splitlines()
    assert 'export ANTHROPIC_BASE_URL="http://desk:9000"' in claude
    assert 'export ANTHROPIC_MODEL="mini"' in claude
    assert "export CLAUDE_CODE_MAX_OUTPUT_TOKENS=4096" in claude


@pytest.mark.parametrize(
    ("capacity", "answer"), [(8_192, 1024), (32_768, 1024), (65_536, 16_896), (1_048_576, 32_000)]
)
def test_an_answer_leaves_room_for_the_first_prompt(capacity: int, answer: int) -> None:
    said = configuration("claude", "http://desk", "mini", capacity)
    assert f"export CLAUDE_CODE_MAX_OUTPUT_TOKENS={answer}\n" in said


def test_a_key_is_never_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESKSIDE_API_KEY", "hush")
    for agent in ("claude", "codex", "opencode"):
        said = printed(capsys, "connect", agent, "--print")
        assert "DESKSIDE_API_KEY" in said
        assert "hush" not in said
    assert "hush" not in printed(capsys, "config", "show")


def test_connect_installs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "claude"]) == 2
    assert "give --print" in capsys.readouterr().err
    assert main(["connect", "emacs", "--print"]) == 2


def test_where_values_come_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable wins over the file, the file over the default."""
    path = tmp_path / "deskside.toml"
    path.write_text('kv-tokens = 4096\nport = 9000\nstop = ["a", "b"]\n')
    environ = {"DESKSIDE_PORT": "9001", "DESKSIDE_API_KEY": "hush"}
    found = [line.split() for line in settings_lines(path, environ)]
    rows = {row[0]: row[1:] for row in found}
    assert rows["kv-tokens"] == ["4096", str(path)]
    assert rows["port"] == ["9001", "DESKSIDE_PORT"]
    assert rows["stop"] == ["a,", "b", str(path)]
    assert rows["host"] == ["127.0.0.1", "default"]
    assert rows["api-key"] == ["(set)", "DESKSIDE_API_KEY"]
    assert len(rows) == len(found)
    assert "9000" in printed(capsys, "config", "show", "--config", str(path))
    path.write_text("port = 1\nwings = 2\n")
    with pytest.raises(InputError, match="wings"):
        settings_lines(path, {})


def test_nothing_answers(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "requests", "chat"):
        assert main([command, "--server", "http://127.0.0.1:9"]) == 2
        told = capsys.readouterr().err
        assert "nothing answers" in told
        assert "--server" in told
        assert main([command, "--server", "ftp://x"]) == 2
        assert "--server must be a URL" in capsys.readouterr().err


def test_a_table_of_requests() -> None:
    assert requests_lines([]) == ["nothing runs or waits"]
    rows = [{"id": "a", "tokens": 10}, {"id": "longer", "tokens": 2}]
    assert requests_lines(rows) == ["id      tokens", "a       10", "longer  2"]


class Peer:
    """Answers every question with what it is given, and remembers the questions."""

    def __init__(self, *events: Any) -> None:
        self.answer, self.asked = events, []

    def events(self, path: str, body: Any) -> Any:
        self.asked.append(json.loads(json.dumps(body)))
        for event in self.answer:
            if isinstance(event, BaseException):
                raise event
            yield event


def delta(**fields: str) -> dict[str, Any]:
    return {"choices": [{"delta": fields, "finish_reason": None}]}


USAGE = {"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 2}}
ANSWER = [
    delta(reasoning="why"),
    delta(content="so "),
    delta(content="it is"),
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": USAGE},
]


def talked(peer: Peer, *lines: str | BaseException) -> str:
    waiting = list(lines)

    def read(prompt: str) -> str:
        if not waiting:
            raise EOFError
        line = waiting.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    out = io.StringIO()
    Chat(Talk(peer), read, out).run()  # type: ignore[arg-type]
    return out.getvalue()


def test_a_talk_remembers() -> None:
    peer = Peer(*ANSWER)
    shown = talked(peer, "one", "", "two")
    assert shown.count("why\nso it is\n[5 tokens (2 of thought)") == 2
    assert "\x1b" not in shown
    assert [m["content"] for m in peer.asked[1]["messages"]] == ["one", "so it is", "two"]
    assert peer.asked[1]["messages"][1]["reasoning"] == "why"
    assert "temperature" not in peer.asked[0]
    assert peer.asked[0]["thinking"] == {"type": "enabled"}


def test_commands() -> None:
    peer = Peer(*ANSWER)
    shown = talked(
        peer, "one", "/reset", "/system Be short.", "/temp 0.5", "/think off", "two", "/temp x"
    )
    assert [m["content"] for m in peer.asked[1]["messages"]] == ["Be short.", "two"]
    assert peer.asked[1]["temperature"] == 0.5
    assert peer.asked[1]["thinking"] == {"type": "disabled"}
    assert "error: /temp needs a number, got 'x'" in shown
    assert "/reset" in talked(peer, "/help")
    assert "/reset" in talked(peer, "/nonsense")
    assert "/reset" in talked(peer, "/think maybe")
    asked = len(peer.asked)
    talked(peer, "/temp 1", "/temp", "/system", "three", "/quit", "four")
    assert len(peer.asked) == asked + 1
    assert "temperature" not in peer.asked[-1]


def test_an_interrupt_stops_the_answer_alone() -> None:
    """What came stays; a question without a word of an answer is forgotten."""
    peer = Peer(*ANSWER[:2], KeyboardInterrupt())
    shown = talked(peer, "one", KeyboardInterrupt(), "two")
    assert shown.count("(stopped)") == 2
    assert "/quit or Ctrl-D leaves" in shown
    assert [m["content"] for m in peer.asked[1]["messages"]] == ["one", "so ", "two"]
    silent = Peer(InputError("x: too long"))
    assert talked(silent, "one", "two").count("error: x: too long") == 2
    assert [m["content"] for m in silent.asked[1]["messages"]] == ["two"]
