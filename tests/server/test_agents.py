"""Requests as coding agents send them: recorded from Claude Code 2.1.197 and Codex 0.171.0.

Their texts are replaced and most of their tools left out; fields, blocks, schemas and headers are
as they came. Both ran to their end against `deskside serve` with what `deskside connect` printed.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deskside.cli import main
from tests.server.rig import Server, serving

FOLDER = Path(__file__).parent / "agents"
AGENTS = ("claude_code", "codex")
KINDS = ("function", "custom", "namespace")
"""Types of tools that the model is told of."""
ENDS = {"claude_code": "message_stop", "codex": "response.completed"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--kv-tokens", "32768", "--speculation", "3") as running:
        yield running


def recorded(agent: str) -> dict[str, Any]:
    return dict(json.loads((FOLDER / f"{agent}.json").read_text()))


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agents_request_is_streamed_to_its_end(server: Server, agent: str) -> None:
    asked = recorded(agent)
    headers = {**asked["headers"], "authorization": "Bearer none"}
    url = server.url + asked["path"]
    with server.client.stream("POST", url, json=asked["body"], headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        names = [line.removeprefix("event: ") for line in answer.iter_lines() if "event: " in line]
    assert names[-1] == ENDS[agent]
    assert not any("error" in name or "failed" in name for name in names)


@pytest.mark.parametrize("agent", AGENTS)
def test_its_tools_stand_in_the_prompt(server: Server, agent: str) -> None:
    """One tool more makes the prompt longer: none that can be offered is left out."""
    asked = recorded(agent)
    body = {**asked["body"], "stream": False}
    offered = [tool for tool in body["tools"] if tool.get("type", "custom") in KINDS]

    def length(tools: list[Any]) -> int:
        usage = server.post(asked["path"], {**body, "tools": tools}).json()["usage"]
        return int(usage["input_tokens"]) + int(usage.get("cache_read_input_tokens", 0))

    whole = length(body["tools"])
    for one in offered:
        assert length([tool for tool in body["tools"] if tool is not one]) < whole, one


def test_what_connect_prints_fits_a_service_that_runs(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {}
    for agent in ("claude", "codex"):
        assert main(["connect", agent, "--print", "--server", server.url]) == 0
        said[agent] = capsys.readouterr().out
    assert tomllib.loads(said["codex"])["model_context_window"] == 32_768
    assert "export CLAUDE_CODE_MAX_OUTPUT_TOKENS=1024" in said["claude"]
    assert "export CLAUDE_CODE_AUTO_COMPACT_WINDOW=32768" in said["claude"]
