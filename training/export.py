"""Writes trained weights as a checkpoint folder in the 0731 layout (stage 5).

Experts become MXFP4, the other large matrices FP8 with 128x128 blocks, the rest BF16 or F32;
stacked experts are taken apart again. The folder holds config.json, the index, the shards and
the tokenizer's files.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import stream
from deskside.checkpoint.writer import write
from deskside.formats import fp8, mxfp4
from training.quantize import stored_as

SHARD_BYTES = 15 << 20


def pack_one(name: str, value: Tensor) -> dict[str, Tensor]:
    """One tensor of the checkpoint, with its scales where it has them."""
    kind = stored_as(name)
    if kind == "fp4":
        codes, scales = mxfp4.encode(value.float())
        return {name: codes.view(torch.int8), scale_name(name): scales.view(torch.float8_e8m0fnu)}
    if kind == "fp8":
        codes, scales = fp8.encode(value.float())
        codes = codes.view(torch.float8_e4m3fn)
        return {name: codes, scale_name(name): scales.view(torch.float8_e8m0fnu)}
    if kind == "bf16":
        return {name: value.to(torch.bfloat16)}
    if kind == "wide":
        return {name: value.to(torch.bfloat16).float()}
    return {name: value.float()}


def scale_name(name: str) -> str:
    """`x.weight` has its scales at `x.scale`."""
    return name.removesuffix("weight") + "scale"


def pack(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of the checkpoint by name."""
    out: dict[str, Tensor] = {}
    for name, value in weights.items():
        if name.endswith("tid2eid"):
            out[name] = value.long()
        elif ".experts.w" in name:
            stem, leaf = name.rsplit(".", 1)
            for expert, matrix in enumerate(value):
                out.update(pack_one(f"{stem}.{expert}.{leaf}.weight", matrix))
        else:
            out.update(pack_one(name, value))
    return out


def export_checkpoint(
    weights: dict[str, Tensor], config: Path, tokenizer: Path, folder: Path
) -> None:
    """Writes the folder anew: shards, index and config.json by the product, then the tokenizer."""
    if folder.exists():
        shutil.rmtree(folder)
    write(folder, json.loads(config.read_text()), pack(weights).items(), shard_bytes=SHARD_BYTES)
    for file_name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file_name, folder / file_name)


def stored_tensors(folder: Path, drafter: bool) -> dict[str, Tensor]:
    """The trunk's or the drafter's tensors of a folder as they are stored."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    stored: dict[str, Tensor] = {}
    for file in sorted(set(index["weight_map"].values())):
        stored.update(load_file(folder / file))
    return {n: value for n, value in stored.items() if n.startswith("mtp.") == drafter}


def load_checkpoint(folder: Path, drafter: bool = False) -> dict[str, Tensor]:
    """The trunk's (or drafter's) weights in float32 under the training names, experts stacked."""
    stored = stored_tensors(folder, drafter)
    out: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, value in stored.items():
        if name.endswith(".scale"):
            continue
        if value.dtype == torch.int8:
            scales = stored[scale_name(name)].view(torch.uint8)
            value = mxfp4.decode(value.view(torch.uint8), scales)
        elif value.dtype == torch.float8_e4m3fn:
            value = fp8.decode(value, stored[scale_name(name)].view(torch.uint8))
        if ".experts." in name:
            stem, expert, leaf, _ = name.rsplit(".", 3)
            experts.setdefault(f"{stem}.{leaf}", {})[int(expert)] = value
        else:
            out[name] = value if name.endswith("tid2eid") else value.float()
    for name, parts in experts.items():
        out[name] = torch.stack([parts[i] for i in range(len(parts))])
    return out


def export_drafter(
    weights: dict[str, Tensor], config: dict[str, object], trunk: Path, folder: Path
) -> None:
    """Writes trunk and drafter as one folder; the trunk's stored tensors pass through unchanged."""
    if folder.exists():
        shutil.rmtree(folder)
    both = stored_tensors(trunk, drafter=False) | pack(weights)
    write(folder, config, both.items(), shard_bytes=SHARD_BYTES)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps(json.loads(index.read_text()), separators=(",", ":")) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json", "MODEL_CARD.md"):
        if (trunk / file).exists():
            shutil.copy(trunk / file, folder / file)


def check_merge(trunk: Path, folder: Path) -> int:
    """Reads the folder as the product does; the trunk must be as it was. Returns all bytes."""
    stored = stream(Checkpoint.open(trunk))
    before = {spec.name: value for spec, value in stored if not spec.name.startswith("mtp.")}
    after = {spec.name: value for spec, value in stream(Checkpoint.open(folder))}
    for name, value in before.items():
        same = after[name].dtype == value.dtype and after[name].shape == value.shape
        if not same or not torch.equal(after[name].view(torch.uint8), value.view(torch.uint8)):
            raise ValueError(f"{name} changed on the way from {trunk} to {folder}")
    return sum(file.stat().st_size for file in folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="masters of stage 4")
    parser.add_argument("--config", type=Path, default=Path(__file__).parent / "config.json")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    export_checkpoint(load_file(args.weights), args.config, args.tokenizer, args.out)


if __name__ == "__main__":
    main()
