"""The published schema, attacked at random: no answer may be a fault of the server's own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.rig import Server, serving

KEY = "a-key-of-ours"
ATTACKED = (
    *("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/responses", "/tokenize", "/detokenize", "/render"),
)
TOOL = Path(sys.executable).with_name("schemathesis")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(
        *("--kv-tokens", "1024", "--max-running", "4", "--default-max-tokens", "16"),
        "--any-model-name",
        environ={"DESKSIDE_API_KEY": KEY},
    ) as running:
        yield running


def _attack(server: Server, folder: Path, seconds: int, phases: str, examples: int) -> None:
    done = subprocess.run(
        [
            *(str(TOOL), "run", f"{server.url}/openapi.json"),
            *("--header", f"X-Api-Key: {KEY}", "--header", f"Authorization: Bearer {KEY}"),
            *("--checks", "not_a_server_error,ignored_auth,content_type_conformance"),
            *("--exclude-path-regex", "^/(admin|docs|metrics)"),
            *("--phases", phases, "--max-time", str(seconds), "--seed", "1"),
            *("--max-examples", str(examples), "--request-timeout", "30"),
            *("--report", "junit", "--report-dir", str(folder)),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "Test cases" in done.stdout
    log = server.log.read_text()
    assert all(f"POST {path} " in log for path in ATTACKED), "a route was not tried"
    answer = server.post(
        "/v1/completions", {"prompt": [0, 300], "max_tokens": 2}, headers={"x-api-key": KEY}
    )
    assert answer.status_code == 200


def test_a_short_attack(server: Server, tmp_path: Path) -> None:
    _attack(server, tmp_path, 20, "examples,coverage", 5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_long_attack(server: Server, tmp_path: Path, seconds: float) -> None:
    _attack(server, tmp_path, round(seconds), "examples,coverage,fuzzing", 1000)
