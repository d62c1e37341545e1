"""`deskside run`, whole: a random miniature from disk to text on the terminal."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from deskside.cli import main
from deskside.config.engine import EngineOptions
from deskside.core import RankLoad
from deskside.llm import LLM
from deskside.text.tokenizer import Tokenizer
from tests.miniature import write_miniature
from tests.unit.text.conftest import small_tokenizer

QUICK = ("--max-tokens", "12", "--kv-tokens", "512", "--max-running", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("miniature")
    write_miniature(path)
    small_tokenizer().save(str(path / "tokenizer.json"))
    return path


def run(folder: Path, *words: str) -> int:
    return main(["run", *words, "--model", str(folder), *QUICK])


def answer(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run(folder, "--json", *words) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found = json.loads(captured.out)
    assert isinstance(found, dict)
    return found


def test_json_agrees_with_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer.open(folder)
    found = answer(folder, capsys, "def f(n):")
    ids = found["token_ids"]
    assert isinstance(ids, list)
    assert found["text"] == tokenizer.decode(ids)
    assert found["completion_tokens"] == len(ids) <= 12
    assert found["prompt_tokens"] == len(tokenizer.prompt("def f(n):"))
    assert found["finish_reason"] == ("stop" if ids[-1] == tokenizer.eos else "length")
    assert found["kv_tokens"] == 512


def test_streamed_text_is_the_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = answer(folder, capsys, "def f(n):")["text"]
    assert run(folder, "--quiet", "def f(n):") == 0
    assert capsys.readouterr().out == whole
    assert run(folder, "def f(n):") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{whole}\n"
    assert captured.err.startswith("prompt ")


def test_a_seed_repeats_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warm = ("import", "--temperature", "1.5")
    first = answer(folder, capsys, *warm)
    again = answer(folder, capsys, *warm, "--seed", str(first["seed"]))
    other = answer(folder, capsys, *warm, "--seed", "1")
    assert again["token_ids"] == first["token_ids"]
    assert other["token_ids"] != first["token_ids"]


def test_a_stop_string_cuts_the_text_and_the_tokens(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = Tokenizer.open(folder)
    whole = answer(folder, capsys, "x = ", "--temperature", "1", "--seed", "5")
    text, ids = whole["text"], whole["token_ids"]
    assert isinstance(text, str)
    assert isinstance(ids, list)
    stop = next(c for c in text[3:] if c.isprintable() and c != "\ufffd" and c not in text[:2])
    cut = answer(folder, capsys, "x = ", "--temperature", "1", "--seed", "5", "--stop", stop)
    assert cut["text"] == text[: text.index(stop)]
    assert cut["finish_reason"] == "stop"
    kept = cut["token_ids"]
    assert isinstance(kept, list)
    assert kept == ids[: len(kept)]
    assert stop in tokenizer.decode(kept)
    assert stop not in tokenizer.decode(kept[:-1])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["p" * 600], 2, "too long: need"),
        (["p", "--kv-tokens", str(10**12)], 3, "does not fit: need"),
    ],
)
def test_what_does_not_fit(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
) -> None:
    quick = () if "--kv-tokens" in words else QUICK
    assert main(["run", *words, "--model", str(folder), *quick]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_folder_without_tokenizer(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder, tmp_path / "m", ignore=shutil.ignore_patterns("tokenizer.json"))
    assert run(tmp_path / "m", "p") == 2
    assert "tokenizer.json: cannot be read (No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tier", "mmx"), "--tier mmx: this processor and build have "),
        (("--tier", "portable", "--kernels", "plain"), "--tier portable needs --kernels native"),
    ],
)
def test_a_tier_that_is_not_there_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert run(folder, *words, "def f(n):") == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("_native_defaults")
def test_the_tier_in_use_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="deskside"):
        assert run(folder, "--tier", "portable", "def f(n):") == 0
    assert "compiled kernels, portable tier (forced; available: " in caplog.text


def test_more_threads_than_cpus_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    have = len(os.sched_getaffinity(0))
    assert run(folder, "--threads", str(have + 1), "def f(n):") == 2
    error = capsys.readouterr().err
    assert f"--threads {have + 1}: rank 0 may use {have} CPU" in error
    assert f"use --threads {have} or auto" in error


def test_a_load_tells_how_far_it_is(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    options = EngineOptions(kv_tokens=512, max_running=1, threads=1)

    def told(loads: Sequence[RankLoad]) -> None:
        (one,) = loads
        calls.append((one.done, one.total))

    with LLM.open(str(folder), options, told) as llm:
        weights = llm.plan.weights
    assert calls[-1] == (weights, weights)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
