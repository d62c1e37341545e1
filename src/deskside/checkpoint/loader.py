"""Streams a checkpoint's tensors into memory, each read once and each in its own storage.

Owns the translation of stored types to torch ones and the last check of scale bytes. Knows no
model; keeps no file open and no mapping alive.
"""

from collections.abc import Callable, Iterator
from io import FileIO

import torch
from torch import Tensor

from deskside.checkpoint.index import Checkpoint
from deskside.errors import CheckpointError
from deskside.formats.e8m0 import check_scales
from deskside.layout.names import TensorSpec

__all__ = ["TORCH_TYPES", "stream"]

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


def stream(
    checkpoint: Checkpoint,
    wanted: Callable[[TensorSpec], bool] | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[TensorSpec, Tensor]]:
    """Yield every wanted tensor in file order, on the CPU, of its stored shape.

    `progress` is called after each tensor with the bytes read and the bytes to read in all.

    Raises:
        CheckpointError: a file has shrunk since it was opened, or a scale byte is 255 (NaN).
    """
    total = sum(e.tensor.nbytes for e in checkpoint.entries() if not wanted or wanted(e.tensor))
    done = 0
    for shard in checkpoint.shards:
        entries = [entry for entry in shard.entries if not wanted or wanted(entry.tensor)]
        if not entries:
            continue
        # Unbuffered: a buffer would read beyond the tensors that are wanted.
        with shard.path.open("rb", buffering=0) as file:
            for entry in entries:
                where = f"{shard.path}: tensor {entry.tensor.name}"
                file.seek(entry.offset)
                tensor = _read(file, entry.tensor, where)
                if entry.tensor.dtype == "F8_E8M0":
                    check_scales(tensor, where)
                done += entry.tensor.nbytes
                if progress:
                    progress(done, total)
                yield entry.tensor, tensor


def _read(file: FileIO, spec: TensorSpec, where: str) -> Tensor:
    """Fill a new tensor from the file's position on."""
    raw = torch.empty(spec.nbytes, dtype=torch.uint8)
    view = raw.numpy().data
    filled = 0
    while filled < spec.nbytes:  # one call reads at most 2 GiB
        count = file.readinto(view[filled:])
        if not count:
            raise CheckpointError(
                f"{where}: the file ends {spec.nbytes - filled} bytes early; download it again"
            )
        filled += count
    return raw.view(TORCH_TYPES[spec.dtype]).view(spec.shape)
