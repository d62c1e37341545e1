"""What `--model` may say."""

from pathlib import Path

import pytest

from deskside.errors import InputError
from deskside.layout.folder import BUILTIN, builtin_names, resolve


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "builtin" / "mini").mkdir(parents=True)
    (tmp_path / "builtin" / "mini" / "config.json").write_text("{}")
    (tmp_path / "builtin" / "empty").mkdir()
    return tmp_path / "builtin"


def test_names_and_folders(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini").mkdir()
    assert builtin_names(root) == ("mini",)
    assert resolve("mini", root) == root / "mini"
    assert resolve("./mini", root) == Path("mini")
    assert resolve(str(tmp_path), root) == tmp_path
    assert builtin_names(tmp_path / "nowhere") == ()


@pytest.mark.parametrize("model", ["", "empty", "owner/model", "nowhere"])
def test_what_is_not_there(root: Path, tmp_path: Path, model: str) -> None:
    with pytest.raises(InputError, match=r"no such folder.*built in: mini") as caught:
        resolve(model, root)
    assert "\n" not in str(caught.value)


def test_a_file_is_no_folder(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"is a file; name the folder"):
        resolve(str(path), root)


def test_what_ships_is_small() -> None:
    folder = BUILTIN / "deskside-mini"
    sizes = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    shards = [size for name, size in sizes.items() if name.endswith(".safetensors")]
    assert sum(sizes.values()) <= 38_000_000
    assert max(shards) <= 15 * 2**20
