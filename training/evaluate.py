"""Measures a checkpoint folder on the held-out files: bits per byte, by project (stage 6).

Reads the packed weights, runs the training forward as it is served (rounded caches, attention to
the indexer's choice) and prints one JSON object. `--every 10` takes each tenth window, for a CPU.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from training.data import Windows, held_out_windows
from training.export import load_checkpoint
from training.model import Mode, Trunk
from training.shape import Shape


def thinned(windows: Windows, every: int) -> Windows:
    """Each n-th window; bytes are then counted from the share of predictions that is left."""
    total: dict[str, int] = {}
    kept: dict[str, int] = {}
    for index, project in enumerate(windows.project):
        count = int(windows.counted[index].sum())
        total[project] = total.get(project, 0) + count
        kept[project] = kept.get(project, 0) + count * (index % every == 0)
    sizes = {p: round(windows.bytes[p] * kept[p] / total[p]) for p in total if kept[p]}
    step = slice(0, None, every)
    return Windows(windows.ids[step], windows.counted[step], windows.project[step], sizes)


def bits_per_byte(model: Trunk, windows: Windows, batch: int, mode: Mode) -> dict[str, float]:
    """Held-out bits per byte, by project and over all bytes."""
    bits: dict[str, float] = {}
    device = model.hc_head_base.device
    for start in range(0, len(windows.ids), batch):
        ids = windows.ids[start : start + batch]
        missing = batch - len(ids)
        rows = torch.cat((ids, ids[:1].expand(missing, -1))) if missing else ids
        loss, _, _ = model.losses(rows.to(device), mode)
        loss = loss.detach().float().cpu()[: len(ids)] * windows.counted[start : start + batch]
        for row, value in enumerate(loss.sum(1).tolist()):
            name = windows.project[start + row]
            bits[name] = bits.get(name, 0.0) + value / math.log(2)
    result = {name: value / windows.bytes[name] for name, value in sorted(bits.items())}
    result["all"] = sum(bits.values()) / sum(windows.bytes.values())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--held-out", type=Path, required=True, help="held_out.jsonl of stage 1")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--dense", action="store_true", help="attend to every entry")
    parser.add_argument("--float-cache", action="store_true", help="no rounding of cached rows")
    args = parser.parse_args()
    model = Trunk(Shape.read(args.model / "config.json"))
    model.load_state_dict(load_checkpoint(args.model))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    windows = held_out_windows(args.held_out, args.model / "tokenizer.json", args.length)
    windows = thinned(windows, args.every)
    mode = Mode(not args.float_cache, not args.dense, not args.dense)
    with torch.no_grad():
        result = bits_per_byte(model, windows, args.batch, mode)
    print(json.dumps({name: round(value, 5) for name, value in result.items()}))


if __name__ == "__main__":
    main()
