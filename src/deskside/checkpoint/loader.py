"""Streams a checkpoint's tensors into memory, each byte read once and put where it will stay.

Owns the translation of stored types to torch ones, the part of a tensor that a rank gets, and the
last check of scale bytes. Knows no model; keeps no file open and no mapping alive.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.checkpoint.index import Checkpoint, Entry
from deskside.errors import CheckpointError
from deskside.formats.e8m0 import check_scales
from deskside.layout.names import TensorSpec

__all__ = ["TORCH_TYPES", "Cut", "Progress", "Room", "stream"]

TORCH_TYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "I64": torch.int64,
    "I8": torch.uint8,
    "F8_E4M3": torch.uint8,
    "F8_E8M0": torch.uint8,
}
"""The torch type in which a stored type is handed out: codes and scales as raw bytes."""

Progress = Callable[[int, int], None]
"""Takes bytes read and bytes to read in all."""

Room = Callable[[TensorSpec], Tensor | None]
"""Says where a tensor is to be put: contiguous, of the rank's shape and the type handed out."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of every tensor that a rank holds."""

    rank: int = 0
    ranks: int = 1

    def bytes_read(self, tensor: TensorSpec) -> int:
        """Return what is read of a tensor: the part, or all where the part is columns."""
        return tensor.nbytes if tensor.axis == 1 else tensor.rank_bytes(self.ranks)


def stream(
    checkpoint: Checkpoint,
    wanted: Callable[[TensorSpec], bool] | None = None,
    progress: Progress | None = None,
    *,
    room: Room | None = None,
    cut: Cut | None = None,
) -> Iterator[tuple[TensorSpec, Tensor]]:
    """Yield every wanted tensor in file order, on the CPU: its stored shape, or the rank's part.

    `progress` is called after each tensor. Where `room` has no place for a tensor, and without it,
    the tensor gets a storage of its own.

    Raises:
        CheckpointError: a file has shrunk since it was opened, or a scale byte is 255 (NaN).
        InputError: the cut would go through a block.
    """
    cut = cut or Cut()
    total = sum(
        cut.bytes_read(e.tensor) for e in checkpoint.entries() if not wanted or wanted(e.tensor)
    )
    done = 0
    for shard in checkpoint.shards:
        entries = [entry for entry in shard.entries if not wanted or wanted(entry.tensor)]
        if not entries:
            continue
        with shard.path.open("rb", buffering=0) as file:
            for entry in entries:
                where = f"{shard.path}: tensor {entry.tensor.name}"
                tensor = _read(file.fileno(), entry, cut, room, where)
                if entry.tensor.dtype == "F8_E8M0":
                    check_scales(tensor, where)
                done += cut.bytes_read(entry.tensor)
                if progress:
                    progress(done, total)
                yield entry.tensor, tensor


def _read(file: int, entry: Entry, cut: Cut, room: Room | None, where: str) -> Tensor:
    """Read a rank's part of a tensor to its place."""
    spec = entry.tensor
    shape, dtype = spec.rank_shape(cut.ranks), TORCH_TYPES[spec.dtype]
    place = None if room is None else room(spec)
    if place is None:
        place = torch.empty(shape, dtype=dtype)
    assert place.shape == shape
    assert place.dtype is dtype
    if spec.axis == 1 and cut.ranks > 1:
        whole = torch.empty(spec.shape, dtype=dtype)
        _fill(file, entry.offset, whole, where)
        place.copy_(whole.narrow(1, cut.rank * shape[1], shape[1]))
    else:
        skipped = 0 if spec.axis is None else cut.rank * place.nbytes
        _fill(file, entry.offset + skipped, place, where)
    return place


def _fill(file: int, offset: int, place: Tensor, where: str) -> None:
    """Fill a contiguous tensor from an offset of the file on."""
    view = place.view(-1).view(torch.uint8).numpy().data
    filled = 0
    while filled < place.nbytes:  # one call reads at most 2 GiB
        count = os.preadv(file, [view[filled:]], offset + filled)
        if not count:
            raise CheckpointError(
                f"{where}: the file ends {place.nbytes - filled} bytes early; download it again"
            )
        filled += count
