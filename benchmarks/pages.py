"""Read banks of experts with huge pages and without, in turn: what do huge pages bring?

Reads all bytes, then experts in random order, out of one bank of each kind; the figure is the ratio
of the medians. Writes a JSON file.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.experts import RESULTS, fingerprint
from deskside.experts.memory import HostMemory
from deskside.kernels import native
from deskside.kernels.pool import touch

EXPERT = 13_369_344
"""Bytes of one expert of the real model."""
EXPERTS = 64


def rate(memory: Tensor, order: list[int]) -> float:
    """Read experts in an order and return GB/s."""
    started = time.perf_counter()
    for expert in order:
        native.read(memory[expert * EXPERT : (expert + 1) * EXPERT])
    return memory.nbytes / (time.perf_counter() - started) / 1e9


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS / "pages.json")
    args = parser.parse_args()
    memories = {
        name: HostMemory(huge, touch).allocate(EXPERTS * EXPERT)
        for name, huge in (("huge", True), ("small", False))
    }
    for memory in memories.values():
        memory.random_(0, 256)
    found: dict[str, Any] = {**fingerprint(), "repeats": args.repeats}
    for threads in args.threads:
        native.set_threads(threads)
        rates: dict[str, list[float]] = {name: [] for name in memories}
        for _ in range(args.repeats):
            order = random.sample(range(EXPERTS), EXPERTS)
            for name, memory in memories.items():
                rates[name].append(rate(memory, order))
        medians = {name: statistics.median(values) for name, values in rates.items()}
        found[f"{threads} threads"] = {
            **{f"{name} pages, GB/s": round(value, 2) for name, value in medians.items()},
            "ratio of medians": round(medians["huge"] / medians["small"], 3),
        }
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
