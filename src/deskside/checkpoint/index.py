"""A checkpoint folder, judged by its headers before a byte of weights is read.

Owns the agreement of config.json, index, shard headers and name table: what it returns holds
exactly the tensors of the model, each at a known place. Reads no payload.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deskside.checkpoint.foreign import INDEX, refuse_foreign_names, refuse_without_index
from deskside.checkpoint.header import MOST_HEADER, Stored, read_header
from deskside.checkpoint.strict import parse_object, shown
from deskside.errors import CheckpointError
from deskside.layout.names import TensorSpec, tensors
from deskside.spec import ModelSpec, read_config

__all__ = ["Checkpoint", "Entry", "Shard"]


MOST_NAME = 255
"""Characters of a file name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor and the byte of its shard at which it begins."""

    tensor: TensorSpec
    offset: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A file and its tensors in file order."""

    path: Path
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole folder: the model's shapes and every tensor's place."""

    folder: Path
    config: Mapping[str, Any]
    spec: ModelSpec
    shards: tuple[Shard, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads."""
        return sum(entry.tensor.nbytes for entry in self.entries())

    def entries(self) -> Iterator[Entry]:
        """Yield all tensors' places in file order."""
        for shard in self.shards:
            yield from shard.entries

    @staticmethod
    def open(folder: Path) -> "Checkpoint":
        """Read config.json, the index and the headers of all shards, and check them all.

        Raises:
            CheckpointError: anything is missing, unknown, damaged or of another format; one line
                that names the file, the tensor and what to do.
        """
        _contained(folder, folder / "config.json")
        config = read_config(folder)
        refuse_without_index(folder)
        places = _read_index(folder)
        refuse_foreign_names(str(folder / INDEX), places)
        spec = ModelSpec.from_config(config, str(folder / "config.json"))
        table = {tensor.name: tensor for tensor in tensors(spec)}
        _check_names(folder / INDEX, places, table)
        files: dict[str, list[str]] = {}
        for name, file in places.items():
            files.setdefault(file, []).append(name)
        for file, names in files.items():
            _contained(folder, folder / file, f"tensor {names[0]}: ")
        shards = tuple(
            _read_shard(folder / file, files[file], places, table) for file in sorted(files)
        )
        return Checkpoint(folder, config, spec, shards)


def _read_index(folder: Path) -> dict[str, str]:
    """Return the shard file of every tensor; every file is a plain name inside the folder."""
    path = folder / INDEX
    _contained(folder, path)
    try:
        if path.stat().st_size > MOST_HEADER:
            raise CheckpointError(f"{path}: has {path.stat().st_size} bytes, most is {MOST_HEADER}")
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    places = parse_object(data, str(path)).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{path}: 'weight_map' must map tensors to files; get it again")
    # Each distinct value once: a real index names 48 files 72,317 times.
    for file in {str(file): file for file in places.values()}.values():
        reason = _unfit(file)
        if reason:
            name = next(name for name, home in places.items() if home == file)
            raise CheckpointError(f"{path}: tensor {shown(name)}: {reason}")
    return places


def _unfit(file: object) -> str | None:
    """Say why a value of the index cannot be a shard of this folder, or None."""
    if not isinstance(file, str):
        return "file must be a name; get the index again"
    plain = file.isprintable() and not set(file) & set("/\\") and file not in ("", ".", "..")
    if not plain or len(file) > MOST_NAME:
        return (
            f"file {shown(file)} is no plain name and may lie outside the folder; never opened, "
            "get the index again"
        )
    if not file.endswith(".safetensors"):
        return (
            f"file {shown(file)} is no safetensors file; never opened, get the safetensors "
            "checkpoint"
        )
    return None


def _contained(folder: Path, path: Path, what: str = "") -> None:
    """Refuse a file that is missing, or a link that leads out of the folder."""
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {what}the file is missing; get it") from error
    if folder.resolve() not in real.parents:
        raise CheckpointError(
            f"{path}: {what}the link leads outside the folder, to {real}; copy the file itself"
        )


def _check_names(path: Path, places: Mapping[str, str], table: Mapping[str, TensorSpec]) -> None:
    """Refuse an index that lacks a tensor of the model or has another."""
    missing = [name for name in table if name not in places]
    if missing:
        raise CheckpointError(
            f"{path}: tensor {missing[0]} is missing ({len(missing)} in all); get the whole "
            "0731 checkpoint that belongs to this config.json"
        )
    unknown = [name for name in places if name not in table]
    if unknown:
        raise CheckpointError(
            f"{path}: tensor {shown(unknown[0])} is unknown for this config.json ({len(unknown)} "
            "in all); get the config.json and index of the same 0731 checkpoint"
        )


def _read_shard(
    path: Path, names: list[str], places: Mapping[str, str], table: Mapping[str, TensorSpec]
) -> Shard:
    """Read one header and hold it against the index and the table."""
    stored = read_header(path)
    there = {entry.name for entry in stored}
    for name in names:
        if name not in there:
            raise CheckpointError(
                f"{path}: tensor {name} is missing, the index puts it here; get the file again"
            )
    for entry in stored:
        if places.get(entry.name) != path.name:
            home = places.get(entry.name, "no file")
            raise CheckpointError(
                f"{path}: tensor {shown(entry.name)} is here, the index puts it in {home}; get "
                "index and shards of the same checkpoint"
            )
    return Shard(path, tuple(_entry(path, entry, table[entry.name]) for entry in stored))


def _entry(path: Path, stored: Stored, tensor: TensorSpec) -> Entry:
    """Hold one tensor's type and shape against the table."""
    if (stored.dtype, stored.shape) != (tensor.dtype, tensor.shape):
        raise CheckpointError(
            f"{path}: tensor {tensor.name}: is {shown(stored.dtype)} {list(stored.shape)}, need "
            f"{tensor.dtype} {list(tensor.shape)}; get the 0731 checkpoint that belongs to this "
            "config.json"
        )
    return Entry(tensor, stored.offset)
