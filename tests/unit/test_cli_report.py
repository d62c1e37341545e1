"""The spelling of rates and builds."""

from dataclasses import replace
from pathlib import Path

import pytest

from deskside.core import Acceptance
from deskside.report.status import Rates
from deskside.report.version import describe

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_prefill_and_decode_stand_apart() -> None:
    rates = Rates(prompt_tokens=1000, completion_tokens=11, prefill_s=2.0, decode_s=0.5)
    assert rates.prefill == 500.0
    assert rates.decode == 20.0  # the first token belongs to prefill
    assert rates.line() == (
        "prompt 1000 tokens, output 11 tokens; prefill 500 tok/s, decode 20.0 tok/s"
    )


def test_acceptance_is_told_where_something_was_proposed() -> None:
    counts = Acceptance(steps=4, verified=16, accepted=6)
    rates = Rates(1000, 11, prefill_s=2.0, decode_s=0.5, acceptance=counts)
    assert rates.line().endswith("; accepted 37.5% of 16 proposals, 2.50 tokens a step")
    paused = replace(rates, acceptance=replace(counts, trips=2, probes=1))
    assert paused.line().endswith(", 2.50 tokens a step, paused 2 times, tried again once")


def test_what_was_not_measured_is_not_a_number() -> None:
    rates = Rates(prompt_tokens=3, completion_tokens=1, prefill_s=0.0, decode_s=0.0)
    assert rates.prefill is None
    assert rates.decode is None
    assert rates.line() == (
        "prompt 3 tokens, output 1 token; prefill not measured, decode not measured"
    )


def checkout(root: Path) -> Path:
    (root / ".git").mkdir()
    package = root / "src" / "deskside"
    package.mkdir(parents=True)
    return package


@pytest.mark.parametrize(
    ("files", "commit"),
    [
        ({"HEAD": COMMIT}, COMMIT),
        ({"HEAD": "ref: main", "main": COMMIT}, COMMIT),
        ({"HEAD": "ref: main", "packed-refs": f"# packed\n{COMMIT} main\n"}, COMMIT),
        ({"HEAD": "ref: main", "packed-refs": f"{COMMIT} other/main\n"}, None),
        ({"HEAD": "ref: main"}, None),
        ({"HEAD": "rubbish"}, None),
        ({}, None),
    ],
)
def test_commit_of_a_checkout(tmp_path: Path, files: dict[str, str], commit: str | None) -> None:
    package = checkout(tmp_path)
    for name, text in files.items():
        (tmp_path / ".git" / name).write_text(text + "\n")
    line = describe(package)
    assert line.startswith("deskside ")
    assert f"(commit {commit[:12] if commit else 'unknown'}, kernels " in line


def test_an_installed_package_is_no_checkout(tmp_path: Path) -> None:
    package = checkout(tmp_path)
    (tmp_path / ".git" / "HEAD").write_text(COMMIT)
    elsewhere = package.parent.rename(tmp_path / "lib") / "deskside"
    assert "commit unknown" in describe(elsewhere)
