"""Time one layer's hybrid step at the real model's shape beside the same experts in place.

All ways take turns in one process, on experts that are cold and, but for one way, not resident.
Slots are a second pool of host memory here: what shows is how much of a fetch hides behind the
CPU's own work, and that no way differs in a bit; not what a device would bring. Writes a JSON file.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.experts import (
    EXPERTS,
    LIMIT,
    RESULTS,
    ROUTE_SCALE,
    TOPK,
    banks_of,
    distinct,
    fingerprint,
    inputs,
    spread,
)
from deskside.batch import Kinds
from deskside.device import HostDevice
from deskside.experts.cache import ExpertCache
from deskside.experts.fetch import Banks, ExpertSlots
from deskside.experts.service import ExpertLayer, ExpertService, Residency
from deskside.kernels import native
from deskside.ops.integer_moe import windows_of
from deskside.ops.opset import OpSet

ROWS, FRACTIONS = (1, 4), (0.28, 0.5, 1.0)
SLOTS = 40
NOBODY = torch.empty(0, dtype=torch.int64)


def services(ops: OpSet, slots: ExpertSlots) -> dict[str, ExpertService]:
    """Return the ways to run a step; those with slots share the memory, not what is said of it."""
    ways = {"in place": ExpertService(ops)}
    for fraction in FRACTIONS:
        cache = ExpertCache(SLOTS)
        ways[f"fetch fraction {fraction:g}"] = ExpertService(ops, Residency(slots, cache, fraction))
    return ways


def measure(banks: Banks, rows: int, repeats: int) -> dict[str, Any]:
    """Run every way in turn, `repeats` times after one warm-up; milliseconds."""
    windows = windows_of(*banks, LIMIT, TOPK, ROUTE_SCALE)
    ops = OpSet().replaced(native.bodies())
    slots = ExpertSlots.allocate(HostDevice(), banks, SLOTS)
    kinds = Kinds(NOBODY, torch.arange(rows))
    times: dict[str, list[float]] = {}
    layer = ExpertLayer("layer", banks, windows)
    for turn in range(repeats + 1):

        def timed(name: str, run: Callable[[], Tensor | None]) -> Tensor | None:
            started = time.perf_counter()
            out = run()
            if turn:  # noqa: B023
                times.setdefault(name, []).append((time.perf_counter() - started) * 1e3)
            return out

        ways = services(ops, slots)
        for name, service in ways.items():
            x, weights = inputs(rows)
            ids = distinct(rows)  # others each time: what the last way has read is warm
            given = (layer, x, ids, weights, kinds, torch.zeros_like(x))
            step = partial(service.run, *given)
            out = timed(name, step)
            assert out is not None
            assert out.equal(ways["in place"].run(*given))
        timed("the last again, resident and warm", step)
        copied = {expert: slot for slot, expert in enumerate(distinct(rows).unique().tolist())}
        timed("copies of as many alone", partial(slots.copy, banks, copied))
    return {name: spread(values) for name, values in times.items()}


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "hybrid.json")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    native.set_threads(args.threads)
    banks = banks_of(EXPERTS)
    found: dict[str, Any] = {
        **fingerprint(),
        "threads": args.threads,
        "experts of the bank": EXPERTS,
        "repeats": args.repeats,
        "equal bits": True,
        **{f"{rows} rows, ms": measure(banks, rows, args.repeats) for rows in ROWS},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
