"""Every option says the same by flag, by variable and by file, of whatever kind it is."""

import json
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from deskside.cli import main
from deskside.config.commands import ModelOptions, ProcessOptions
from deskside.config.engine import EngineOptions
from deskside.config.server import ServerOptions

OPTIONS = [
    (record, option)
    for record in (ModelOptions, EngineOptions, ServerOptions)
    for option in fields(record)
]


class Asked:
    """Keeps what a service was asked for."""

    def __init__(self) -> None:
        self.records: dict[type, Any] = {}

    def serve(self, model: str, engine: EngineOptions, options: ServerOptions) -> int:
        self.records = {
            ModelOptions: ModelOptions(model),
            EngineOptions: engine,
            ServerOptions: options,
        }
        return 0


def another(option: Field[Any]) -> Any:
    """Return a value of an option's kind that is not its default."""
    kinds = get_args(option.type) or (option.type,)
    if option.name == "test_faults":
        return ("later", "forward:memory:2:1")
    if option.type is bool:
        return not option.default
    if get_origin(option.type) is tuple:
        return ("first", "second one")
    if get_origin(option.type) is Literal:
        return next(choice for choice in kinds if choice != option.default)
    if int in kinds:
        return 3
    if float in kinds:
        return 0.25
    return Path("/a/file") if Path in kinds else "something"


def words(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if value is True:
        return [flag]
    if value is False:
        return [f"{flag}=false"]
    values = value if isinstance(value, tuple) else (value,)
    return [word for one in values for word in (flag, str(one))]


def asked(*arguments: str) -> dict[type, Any]:
    services = Asked()
    assert main(["serve", *arguments], services) == 0  # type: ignore[arg-type]
    return services.records


@pytest.mark.parametrize(("record", "option"), OPTIONS, ids=[option.name for _, option in OPTIONS])
def test_an_option_says_the_same_by_every_way(
    record: type, option: Field[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = another(option)
    want = {kind: kind() for kind in (ModelOptions, EngineOptions, ServerOptions)}
    want[record] = replace(want[record], **{option.name: value})
    assert asked(*words(option.name, value)) == want

    path = tmp_path / "options.toml"
    spelled = list(value) if isinstance(value, tuple) else value
    spelled = str(value) if isinstance(value, Path) else spelled
    path.write_text(f"{option.name.replace('_', '-')} = {json.dumps(spelled)}\n")
    assert asked("--config", str(path)) == want

    one = value[:1] if isinstance(value, tuple) else value  # a variable holds one value
    want[record] = replace(want[record], **{option.name: one})
    monkeypatch.setenv(
        f"DESKSIDE_{option.name.upper()}", one[0] if isinstance(one, tuple) else str(one)
    )
    assert asked() == want


def test_a_flag_can_take_back_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "options.toml"
    path.write_text("fallback = false\nmeasure-costs = true\n")
    got = asked("--config", str(path), "--fallback", "--measure-costs=false")[EngineOptions]
    assert got == EngineOptions()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("fallback = 1", "fallback must be true or false, got 1"),
        ('open-to-all = "yes"', "open-to-all must be true or false, got 'yes'"),
        ("watchdog = true", "watchdog must be a number or text, got True"),
        ("port = [8000]", "port must be a number or text, got [8000]"),
        ("allowed-hosts = [1]", "allowed-hosts must be text, or a list of texts, got [1]"),
        ("port = 1979-05-27", "port must be a number or text, got datetime.date"),
    ],
)
def test_another_kind_is_refused_by_name(
    line: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "options.toml"
    path.write_text(line + "\n")
    assert main(["serve", "--config", str(path)], Asked()) == 2  # type: ignore[arg-type]
    assert f"--config {path}: {told}" in capsys.readouterr().err


def test_the_file_itself_can_be_named_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "config" in {option.name for option in fields(ProcessOptions)}
    path = tmp_path / "options.toml"
    path.write_text("max-running = 3\n")
    monkeypatch.setenv("DESKSIDE_CONFIG", str(path))
    assert asked()[EngineOptions].max_running == 3
