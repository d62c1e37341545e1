"""Time the integer experts of generated rows at the real model's shape against a plain read.

Kernel and read take turns in one process on the same threads; both stream randomly chosen distinct
experts out of a bank far larger than the caches, and the figure is the ratio of their rates. Writes
a JSON file with machine, date and commit.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deskside.formats.packed import Format, Packed
from deskside.kernels import native
from deskside.kernels.tiers import force_tier, tiers
from deskside.machine.machine import read_machine
from deskside.ops.integer_moe import Windows, windows_of

RESULTS = Path(__file__).parent / "results"
EXPERTS, HIDDEN, INNER, TOPK, LIMIT, ROUTE_SCALE = 128, 4096, 2048, 6, 10.0, 1.5
ROWS, THREADS = (1, 2, 4, 6), (1, 2)

Banks = tuple[Packed, Packed, Packed]


def bank(rows: int, columns: int, seed: int) -> Packed:
    """Return random weights of about 0.02."""
    draw = torch.Generator().manual_seed(seed)
    codes = torch.empty(EXPERTS, rows, columns // 2, dtype=torch.uint8)
    for expert in codes:
        expert.random_(0, 256, generator=draw)
    scales = torch.randint(118, 123, (EXPERTS, rows, columns // 32), generator=draw).byte()
    return Packed(codes, scales, Format.MXFP4)


def seconds(run: Callable[[], object]) -> float:
    """Time one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def read_experts(banks: Banks, ids: Tensor) -> None:
    """Read all bytes of experts, in the order in which a kernel needs them."""
    for expert in ids.flatten().tolist():
        for one in banks:
            native.read(one.codes[expert])
            native.read(one.scales[expert])


def inputs(rows: int) -> tuple[Tensor, Tensor]:
    """Return rows and routing weights."""
    weights = torch.rand(rows, TOPK) + 0.1
    return torch.randn(rows, HIDDEN), weights / weights.sum(1, keepdim=True) * ROUTE_SCALE


def distinct(rows: int) -> Tensor:
    """Choose other experts for every row."""
    return torch.randperm(EXPERTS)[: rows * TOPK].view(rows, TOPK)


def relative_error(banks: Banks, windows: Windows) -> float:
    """Compare two rows with float64."""
    x, weights = inputs(2)
    ids = distinct(2)
    sums = native.expert_sums(x, ids, weights, *banks, windows)
    ours = native.finish_experts(sums, windows, x, ids, weights).double()
    exact = torch.zeros_like(ours)
    for row in range(2):
        for expert, weight in zip(ids[row].tolist(), weights[row].double(), strict=True):
            w1, w3, w2 = (
                Packed(one.codes[expert], one.scales[expert], one.format).decode().double()
                for one in banks
            )
            gate, up = w1 @ x[row].double(), w3 @ x[row].double()
            hidden = torch.nn.functional.silu(gate.clamp(max=LIMIT)) * up.clamp(-LIMIT, LIMIT)
            exact[row] += w2 @ (hidden * weight)
    return float((ours - exact).norm() / exact.norm())


def spread(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Return minimum, median and maximum."""
    return {
        "min": round(min(values), digits),
        "median": round(statistics.median(values), digits),
        "max": round(max(values), digits),
    }


def measure(banks: Banks, windows: Windows, repeats: int) -> dict[str, Any]:
    """Run every number of rows in turn, `repeats` times after one warm-up."""
    nbytes = sum(one.nbytes for one in banks) // EXPERTS * TOPK
    read: dict[int, list[float]] = {rows: [] for rows in ROWS}
    kernel: dict[int, list[float]] = {rows: [] for rows in ROWS}
    same: list[float] = []

    def run(rows: int, ids: Tensor) -> float:
        x, weights = inputs(rows)
        return seconds(lambda: native.expert_sums(x, ids, weights, *banks, windows))

    for turn in range(repeats + 1):
        for rows in ROWS:
            ids = distinct(rows)
            plain = seconds(lambda: read_experts(banks, ids))  # noqa: B023
            ours = run(rows, distinct(rows))
            if turn:
                read[rows].append(rows * nbytes / plain / 1e9)
                kernel[rows].append(rows * nbytes / ours / 1e9)
        shared = run(ROWS[-1], distinct(1).repeat(ROWS[-1], 1))
        if turn:
            same.append(shared * 1e3)
    found: dict[str, Any] = {
        f"{rows} rows": {
            "read GB/s": spread(read[rows]),
            "kernel GB/s": spread(kernel[rows]),
            "percent of read, of medians": round(
                100 * statistics.median(kernel[rows]) / statistics.median(read[rows]), 1
            ),
            "percent of read, pairs": spread(
                [100 * a / b for a, b in zip(kernel[rows], read[rows], strict=True)], 1
            ),
        }
        for rows in ROWS
    }
    one = nbytes / statistics.median(kernel[1]) / 1e6
    found["6 rows on the same 6 experts, ms"] = spread(same)
    found["its ratio to 1 row"] = round(statistics.median(same) / one, 2)
    return found


def fingerprint() -> dict[str, Any]:
    """Say what was measured, where and when."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    topology = read_machine().topology
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() or None,
        "processor": topology.model,
        "kernels": tiers().chosen,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "shape": {
            "experts": EXPERTS,
            "hidden": HIDDEN,
            "intermediate": INNER,
            "experts a row": TOPK,
        },
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tier", default=tiers().chosen, choices=tiers().available)
    parser.add_argument("--out", type=Path, default=RESULTS / "experts.json")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    force_tier(args.tier)
    banks = (bank(INNER, HIDDEN, 1), bank(INNER, HIDDEN, 2), bank(HIDDEN, INNER, 3))
    windows = windows_of(*banks, LIMIT, TOPK, ROUTE_SCALE)
    found: dict[str, Any] = {
        **fingerprint(),
        "bank GB": round(sum(one.nbytes for one in banks) / 1e9, 2),
        "repeats": args.repeats,
        "relative error against float64": relative_error(banks, windows),
    }
    for threads in THREADS:
        native.set_threads(threads)
        found[f"{threads} threads"] = measure(banks, windows, args.repeats)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
