"""Where a model lives: what `--model` says, turned into a folder.

Owns the built-in names and the messages for what cannot be a checkpoint folder. Opens no file.
"""

from pathlib import Path

from deskside.errors import InputError

__all__ = ["BUILTIN", "builtin_names", "resolve"]

BUILTIN = Path(__file__).parent.parent / "builtin"
"""The models that ship inside the package, one folder each."""


def builtin_names(root: Path = BUILTIN) -> tuple[str, ...]:
    """Return the names of the models that ship with the package, sorted."""
    if not root.is_dir():
        return ()
    return tuple(sorted(folder.parent.name for folder in root.glob("*/config.json")))


def resolve(model: str, root: Path = BUILTIN) -> Path:
    """Return the folder that a `--model` value names.

    A built-in name wins over a folder of that name in the working directory, so that the default
    means the same everywhere; `./name` is the folder.

    Raises:
        InputError: there is no such folder or name, or it is no folder.
    """
    names = builtin_names(root)
    if model in names:
        return root / model
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        return folder
    known = ", ".join(names) or "none in this installation"
    if model and folder.is_file():
        raise InputError(f"--model {model}: is a file; name the folder that holds config.json")
    raise InputError(
        f"--model {model or repr(model)}: no such folder, and no built-in model of that name "
        f"(built in: {known}); nothing is downloaded, name a local folder"
    )
