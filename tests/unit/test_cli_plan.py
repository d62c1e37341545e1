"""`deskside plan`, whole, on a folder that holds nothing but a config.json."""

import json
from pathlib import Path

import pytest

from deskside.cli import main
from tests.flash import flash_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(flash_config()))
    return tmp_path


def test_the_exit_code_is_the_verdict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plan", "--model", str(folder), "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] == (plan["need"] <= plan["have"])
    assert code == (0 if plan["fits"] else 3)


def test_what_cannot_fit_names_the_knob(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", str(folder), "--kv-tokens", str(10**12)]) == 3
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].startswith("does not fit: ")
    assert captured.err == ""


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "{", "config.json: is not JSON"),
        ("config.json", "{}", "config.json: field 'model_type' is missing"),
        ("other.json", "{}", "config.json: cannot be read (No such file or directory)"),
    ],
)
def test_a_bad_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["plan", "--model", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert f"{tmp_path / message}" in captured.err
