"""Writes a checkpoint folder in the published layout: shards, index and config.json.

Owns the assignment of tensors to files and the bytes of the headers; the same input gives the same
bytes. Holds one tensor at a time. Knows no encodings: it takes what will be stored.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from deskside.checkpoint.foreign import INDEX
from deskside.checkpoint.header import LENGTH_BYTES
from deskside.errors import CheckpointError, InputError
from deskside.layout.names import ITEM_BYTES, TensorSpec, tensors
from deskside.layout.published import published_config
from deskside.spec import ModelSpec

__all__ = ["Source", "write"]

Source = Iterable[tuple[str, Tensor]] | Callable[[TensorSpec], Tensor]
"""Stored tensors by name in any order, or a function that makes each when it is its turn."""

ACCEPTED = {
    "BF16": (torch.bfloat16,),
    "F32": (torch.float32,),
    "I64": (torch.int64,),
    "I8": (torch.uint8, torch.int8),
    "F8_E4M3": (torch.uint8, torch.float8_e4m3fn),
    "F8_E8M0": (torch.uint8, torch.float8_e8m0fnu),
}
ENTRY_BYTES = 160
"""More than a header entry takes beside its name."""


@dataclass(frozen=True, slots=True)
class _File:
    """A shard to be: its name, header and the places of its tensors."""

    name: str
    header: bytes
    offsets: dict[str, int]
    size: int


def write(
    folder: Path,
    model: ModelSpec | Mapping[str, Any],
    source: Source,
    *,
    shard_bytes: int | None = None,
) -> None:
    """Write a checkpoint of `model` (a spec, or a whole config.json as a mapping).

    Files follow the published ones: embed, one a layer, final, one a drafter stage. A part larger
    than `shard_bytes`, header included, is split over several; a single tensor never is. The index
    is written last, so that a folder left half-written is refused.

    Raises:
        InputError: the folder already holds shards.
        CheckpointError: a tensor is unknown, missing, given twice, or of another type or shape.
    """
    config = published_config(model) if isinstance(model, ModelSpec) else dict(model)
    spec = ModelSpec.from_config(config)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.safetensors")) or (folder / INDEX).exists():
        raise InputError(f"{folder}: already holds shards; name an empty folder")
    shards = list(_assign(spec, shard_bytes))
    files = [_layout(tensors, n, len(shards)) for n, tensors in enumerate(shards, start=1)]
    table = {tensor.name: tensor for shard in shards for tensor in shard}
    _write_tensors(folder, files, table, source)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in table.values())},
        "weight_map": {name: file.name for file in files for name in file.offsets},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _assign(spec: ModelSpec, shard_bytes: int | None) -> Iterator[list[TensorSpec]]:
    """Yield the tensors of each file, wide elements first so that all stay aligned."""
    for _, members in groupby(tensors(spec), key=lambda tensor: tensor.unit):
        ordered = sorted(members, key=lambda tensor: -ITEM_BYTES[tensor.dtype])
        shard: list[TensorSpec] = []
        room = shard_bytes
        for tensor in ordered:
            cost = tensor.nbytes + len(tensor.name) + ENTRY_BYTES
            if shard_bytes and room is not None:
                if shard and cost > room:
                    yield shard
                    shard, room = [], shard_bytes
                room -= cost
            shard.append(tensor)
        yield shard


def _layout(members: list[TensorSpec], number: int, count: int) -> _File:
    """Place the tensors of one file end to end."""
    position = 0
    content: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins = {}
    for tensor in members:
        begins[tensor.name] = position
        content[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    header = len(text).to_bytes(LENGTH_BYTES, "little") + text
    offsets = {name: len(header) + begin for name, begin in begins.items()}
    name = f"model-{number:05}-of-{count:05}.safetensors"
    return _File(name, header, offsets, len(header) + position)


def _write_tensors(
    folder: Path, files: list[_File], table: Mapping[str, TensorSpec], source: Source
) -> None:
    """Write headers, then each tensor at its place as it comes."""
    given = ((t.name, source(t)) for t in table.values()) if callable(source) else source
    missing = dict.fromkeys(table)
    with ExitStack() as stack:
        places: dict[str, tuple[BinaryIO, int]] = {}
        for plan in files:
            shard = stack.enter_context((folder / plan.name).open("xb"))
            shard.write(plan.header)
            shard.truncate(plan.size)
            places |= {name: (shard, offset) for name, offset in plan.offsets.items()}
        for name, tensor in given:
            if name not in missing:
                reason = "is given twice" if name in table else "is unknown for this config"
                raise CheckpointError(f"{folder}: tensor {name} {reason}")
            del missing[name]
            file, offset = places[name]
            file.seek(offset)
            file.write(_payload(tensor, table[name]))
    if missing:
        raise CheckpointError(f"{folder}: tensor {next(iter(missing))} is missing")


def _payload(tensor: Tensor, spec: TensorSpec) -> memoryview:
    """Return the bytes to store, little-endian and row-major."""
    if tensor.dtype not in ACCEPTED[spec.dtype] or tuple(tensor.shape) != spec.shape:
        raise CheckpointError(
            f"tensor {spec.name}: is {tensor.dtype} {list(tensor.shape)}, need {spec.dtype} "
            f"{list(spec.shape)}"
        )
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
