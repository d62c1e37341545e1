"""The scripts in benchmarks/ start, and their smallest runs write a result.

What a run measures is nobody's concern here: only that the script still knows the code it times.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
PARTS = {"__init__", "origin", "rival_kt"}
ELSEWHERE = {"rivals"}
"""Those that measure what is installed in an environment of its own."""
CORPUS = "CORPUS"
ONE = ("--threads", "1", "--files", "1", "--code", CORPUS)
SMALLEST: dict[str, tuple[str, ...]] = {
    "acceptance": (*ONE, "--tokens", "8", "--rules", "stop", "--temperatures", "0"),
    "crews": ("--repeats", "1"),
    "experts": ("--repeats", "1", "--prompt-repeats", "1"),
    "generate": ("--threads", "1", "--repeats", "1"),
    "grammar": ("--walks", "1"),
    "hybrid": ("--threads", "1", "--repeats", "1"),
    "masks": ("--repeats", "1", "--tokens", "8"),
    "pages": ("--threads", "1", "--repeats", "1"),
    "prefixes": ("--threads", "1", "--repeats", "1"),
    "ranks": ("--rounds", "1"),
    "serve": (
        "--threads",
        "1",
        "--starts",
        "1",
        "--repeats",
        "1",
        "--rounds",
        "1",
        "--long-repeats",
        "1",
    ),
    "speculation": (*ONE, "--kinds", "code", "--code-tokens", "8", "--modes", "stop"),
}
QUICK = {"acceptance", "speculation"}
"""Those that the fast suite has time for."""
NEEDS = {"grammar": ("xgrammar",)}
"""Packages that are in the group of benchmarks alone."""


def scripts() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in PARTS)


def test_every_script_has_its_smallest_run() -> None:
    assert scripts() == sorted({*SMALLEST, *ELSEWHERE})


@pytest.mark.parametrize("name", scripts())
def test_a_script_says_what_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    script = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 0
    assert "--out" in capsys.readouterr().out


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in sorted(SMALLEST)],
)
def test_a_smallest_run_ends_well(name: str, tmp_path: Path) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "result.json"
    document = {"path": "json.py", "project": "python", "text": Path(json.__file__).read_text()}
    corpus.write_text(json.dumps(document) + "\n")
    words = [str(corpus) if word == CORPUS else word for word in SMALLEST[name]]
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *words, "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(out.read_text())
