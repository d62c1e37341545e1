"""The programs in examples/ run, and what they assert holds."""

import runpy
import sys
from pathlib import Path

import pytest

from deskside.layout.folder import builtin_names

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.skipif("deskside-mini" not in builtin_names(), reason="no built-in model")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
