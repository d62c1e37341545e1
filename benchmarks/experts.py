"""Time the compiled experts at the real model's shape against a plain read of the same memory.

Kernel and read take turns in one process on the same threads, out of a bank far larger than the
caches, and the figure is the ratio of their rates. The kernel runs randomly chosen distinct
experts; the read takes as many side by side, in one call for each part of the bank, since nothing
reads faster than one long stretch. Banks lie in memory as a load takes it, on huge pages where
there are some. Then all tiers take turns at the same rows, with one thread. Prompt rows run through
all experts of a larger bank, by the widest tier and by the widest without a matrix unit. Writes a
JSON file with machine, date and commit.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.origin import origin
from deskside.experts.memory import HostMemory
from deskside.formats import mxfp4
from deskside.formats.packed import Format, Packed
from deskside.kernels import native
from deskside.kernels.tiers import force_tier, tiers
from deskside.ops.integer_moe import Windows, windows_of

RESULTS = Path(__file__).parent / "results"
EXPERTS, HIDDEN, INNER, TOPK, LIMIT, ROUTE_SCALE = 128, 4096, 2048, 6, 10.0, 1.5
ROWS, THREADS = (1, 2, 4, 6), (1, 2)
PROMPT_ROWS, PROMPT_EXPERTS = 512, 256

Banks = tuple[Packed, Packed, Packed]
Run = Callable[[Tensor, Tensor, Tensor, Banks, Windows], Tensor]


def bank(experts: int, rows: int, columns: int, seed: int) -> Packed:
    """Return normal weights of 0.02, quantized; experts hold the same rows in other orders."""
    draw = torch.Generator().manual_seed(seed)
    one_codes, one_scales = mxfp4.encode(torch.randn(rows, columns, generator=draw) * 0.02)
    codes = memory(experts, rows, columns // 2)
    scales = memory(experts, rows, columns // 32)
    for expert in range(experts):
        order = torch.randperm(rows, generator=draw)
        codes[expert], scales[expert] = one_codes[order], one_scales[order]
    return Packed(codes, scales, Format.MXFP4)


def memory(*shape: int) -> Tensor:
    """Return bytes as a bank has them."""
    return HostMemory().allocate(math.prod(shape)).view(shape)


def banks_of(experts: int) -> Banks:
    """Return the three banks of a layer."""
    return (
        bank(experts, INNER, HIDDEN, 1),
        bank(experts, INNER, HIDDEN, 2),
        bank(experts, HIDDEN, INNER, 3),
    )


def seconds(run: Callable[[], object]) -> float:
    """Time one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def read_experts(banks: Banks, count: int) -> None:
    """Read all bytes of so many experts, side by side from a random one on."""
    first = int(torch.randint(banks[0].codes.shape[0] - count + 1, ()))
    for one in banks:
        native.read(one.codes[first : first + count])
        native.read(one.scales[first : first + count])


def inputs(rows: int) -> tuple[Tensor, Tensor]:
    """Return rows and routing weights."""
    weights = torch.rand(rows, TOPK) + 0.1
    return torch.randn(rows, HIDDEN), weights / weights.sum(1, keepdim=True) * ROUTE_SCALE


def distinct(rows: int) -> Tensor:
    """Choose other experts for every row."""
    return torch.randperm(EXPERTS)[: rows * TOPK].view(rows, TOPK)


def generated(x: Tensor, ids: Tensor, weights: Tensor, banks: Banks, windows: Windows) -> Tensor:
    """Run rows as generated ones."""
    sums = native.expert_sums(x, ids, weights, *banks, windows)
    return native.finish_experts(sums, windows, x, ids, weights)


def prompt(x: Tensor, ids: Tensor, weights: Tensor, banks: Banks, windows: Windows) -> Tensor:
    """Run rows as those of a prompt."""
    return native.moe(x, ids, weights, *banks, windows)


def relative_error(run: Run, banks: Banks, windows: Windows) -> float:
    """Compare two rows with float64."""
    x, weights = inputs(2)
    ids = distinct(2)
    ours = run(x, ids, weights, banks, windows).double()
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
    times: list[float] = []

    def run(rows: int, ids: Tensor) -> float:
        x, weights = inputs(rows)
        return seconds(lambda: native.expert_sums(x, ids, weights, *banks, windows))

    for turn in range(repeats + 1):
        for rows in ROWS:
            plain = seconds(lambda: read_experts(banks, rows * TOPK))  # noqa: B023
            ours = run(rows, distinct(rows))
            if turn:
                read[rows].append(rows * nbytes / plain / 1e9)
                kernel[rows].append(rows * nbytes / ours / 1e9)
        alone = run(1, distinct(1))
        shared = run(ROWS[-1], distinct(1).repeat(ROWS[-1], 1))
        if turn:
            same.append(shared * 1e3)
            times.append(shared / alone)
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
    found["its ratio to 1 row, pairs"] = spread(times)
    return found


def measure_tiers(banks: Banks, windows: Windows, tier: str, repeats: int) -> dict[str, Any]:
    """Let all compiled tiers take turns at the same rows and experts."""
    names = [name for name in tiers().available if name != "portable"]
    nbytes = sum(one.nbytes for one in banks) // EXPERTS * TOPK
    found: dict[str, Any] = {}
    for rows in ROWS:
        taken: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(repeats + 1):
            x, weights = inputs(rows)
            for name in names:
                force_tier(name)
                ids = distinct(rows)
                ours = seconds(lambda: native.expert_sums(x, ids, weights, *banks, windows))  # noqa: B023
                if turn:
                    taken[name].append(rows * nbytes / ours / 1e9)
        found[f"{rows} rows, GB/s"] = {name: spread(taken[name]) for name in names}
    force_tier(tier)
    return found


def measure_prompt(banks: Banks, windows: Windows, tier: str, repeats: int) -> dict[str, Any]:
    """Run a prompt by this tier and by the widest without a matrix unit, and read the bank."""
    x, weights = inputs(PROMPT_ROWS)
    names = dict.fromkeys((tier, next(one for one in tiers().available if one != "amx")))
    taken: dict[str, list[float]] = {"read": [], **{name: [] for name in names}}
    for turn in range(repeats + 1):
        ids = torch.stack([torch.randperm(PROMPT_EXPERTS)[:TOPK] for _ in range(PROMPT_ROWS)])
        plain = seconds(lambda: read_experts(banks, PROMPT_EXPERTS))
        for name in names:
            force_tier(name)
            ours = seconds(lambda: prompt(x, ids, weights, banks, windows))  # noqa: B023
            if turn:
                taken[name].append(ours * 1e3)
        if turn:
            taken["read"].append(plain * 1e3)
    force_tier(tier)
    read = statistics.median(taken["read"])
    found: dict[str, Any] = {"read, ms": spread(taken["read"])}
    for name in names:
        found[f"{name}, ms"] = spread(taken[name])
        found[f"{name}, times the read"] = round(statistics.median(taken[name]) / read, 2)
    return found


def fingerprint() -> dict[str, Any]:
    """Say what was measured, where and when."""
    shape = {"experts": EXPERTS, "hidden": HIDDEN, "intermediate": INNER, "experts a row": TOPK}
    return {**origin(), "shape": shape}


def at_threads(threads: int, measured: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure with so many threads."""
    native.set_threads(threads)
    return measured()


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--prompt-repeats", type=int, default=5)
    parser.add_argument("--tier", default=tiers().chosen, choices=tiers().available)
    parser.add_argument("--out", type=Path, default=RESULTS / "experts.json")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    force_tier(args.tier)
    banks = banks_of(EXPERTS)
    windows = windows_of(*banks, LIMIT, TOPK, ROUTE_SCALE)
    found: dict[str, Any] = {
        **fingerprint(),
        "bank GB": round(sum(one.nbytes for one in banks) / 1e9, 2),
        "repeats": args.repeats,
        "relative error against float64, generated rows": relative_error(generated, banks, windows),
        "relative error against float64, prompt rows": relative_error(prompt, banks, windows),
    }
    for threads in THREADS:
        native.set_threads(threads)
        found[f"{threads} threads"] = measure(banks, windows, args.repeats)
    native.set_threads(1)
    found["tiers, 1 thread"] = measure_tiers(banks, windows, args.tier, args.repeats)
    del banks
    wide = banks_of(PROMPT_EXPERTS)
    windows = windows_of(*wide, LIMIT, TOPK, ROUTE_SCALE)
    rows = {
        f"{threads} threads": at_threads(
            threads, lambda: measure_prompt(wide, windows, args.tier, args.prompt_repeats)
        )
        for threads in THREADS
    }
    found[f"{PROMPT_ROWS} prompt rows over {PROMPT_EXPERTS} experts"] = rows
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
