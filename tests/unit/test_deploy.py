"""What docs/deploy.md tells people to run exists: options, keys of the file, exit codes."""

import re
import tomllib
from pathlib import Path

from deskside import errors
from deskside.config.file import option_fields, read_file

TEXT = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
KNOWN = {option.name.replace("_", "-") for option in option_fields()} | {"config"}


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)
    return found


def test_every_option_exists() -> None:
    commands = [line for line in TEXT.splitlines() if "serve" in line or "config show" in line]
    named = {name for line in commands for name in re.findall(r"--([a-z-]+)", line)}
    foreign = {"rm", "secret"}  # podman's
    assert named - foreign <= KNOWN
    assert "api-key-file" in named


def test_the_file_is_one(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    path.write_text(block("toml"))
    assert set(read_file(path)) == set(tomllib.loads(block("toml")))


def test_codes_that_no_restart_helps() -> None:
    (line,) = re.findall(r"RestartPreventExitStatus=(.*)", block("ini"))
    kinds = (errors.InputError, errors.CapacityError, errors.PortHeldError)
    assert [int(word) for word in line.split()] == [kind.exit_code for kind in kinds]
    assert "SuccessExitStatus=143" in block("ini")
