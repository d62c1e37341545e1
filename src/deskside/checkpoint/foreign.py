"""Folders of other formats and older revisions, told apart by names alone.

Owns the one-line refusals that say which checkpoint is needed instead. Opens no file.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from deskside.checkpoint.strict import shown
from deskside.errors import CheckpointError

__all__ = ["INDEX", "refuse_foreign_names", "refuse_without_index"]

INDEX = "model.safetensors.index.json"
PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})

_OLDER = re.compile(r"mtp\.\d+\.(e_proj|h_proj|enorm|hnorm)\.")
_NVFP4 = re.compile(r"\.(weight_scale_2|weight_global_scale|input_scale|input_global_scale)$")
_RENAMED = re.compile(r"^model\.|\.weight_scale(_inv)?$|\.weight_packed$")


def refuse_foreign_names(where: str, names: Iterable[str]) -> None:
    """Refuse the names of another format or revision.

    Raises:
        CheckpointError: names `where`, the first such tensor and the checkpoint to get.
    """
    for name in names:
        if _OLDER.match(name):
            raise CheckpointError(
                f"{where}: tensor {shown(name)} belongs to the April/June revision (NextN "
                "drafter); get the 0731 checkpoint (DSpark drafter)"
            )
        if _NVFP4.search(name):
            raise CheckpointError(
                f"{where}: tensor {shown(name)} belongs to an NVFP4 checkpoint (E4M3 scale per 16 "
                "and a tensor scale); only MXFP4 (E8M0 scale per 32) is served, get the original"
            )
        if _RENAMED.search(name):
            raise CheckpointError(
                f"{where}: tensor {shown(name)} is named as in a converted checkpoint; get the "
                "original one, whose names begin with 'layers.' and whose scales end in '.scale'"
            )


def refuse_without_index(folder: Path) -> None:
    """Say what a folder without an index file holds instead.

    Raises:
        CheckpointError: always unless the index is there; pickles are named, never opened.
    """
    if (folder / INDEX).exists():
        return
    files = sorted(path for path in folder.iterdir())
    shards = [path for path in files if path.suffix == ".safetensors"]
    pickles = [path for path in files if path.suffix in PICKLES]
    if pickles and not shards:
        raise CheckpointError(
            f"{pickles[0]}: is a pickle, which can run code and is never opened; "
            "get the safetensors checkpoint"
        )
    there = f"{len(shards)} shards but no index" if shards else "no weights"
    raise CheckpointError(f"{folder / INDEX}: is missing ({there} there); get the whole folder")
