"""Time the experts of one generated row with workers tied to cores and free to move, in turn.

Every crew takes a turn in each round. The figure is the median over rounds of its time over that of
the first crew: all cores, nobody tied. Also counts what handing out a job costs: a product so small
that there is little else. Writes a JSON file.
"""

import argparse
import json
import os
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

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
    seconds,
)
from deskside.kernels import native
from deskside.kernels.pool import set_workers
from deskside.machine.binding import bound
from deskside.machine.placement import RankPlace, place
from deskside.machine.topology import Topology, read_topology
from deskside.ops.integer_moe import windows_of


def crews(topology: Topology) -> dict[str, RankPlace]:
    """Return the ways to use this machine."""
    cores = [core[0] for core in topology.cores]
    everyone = place(topology, threads=len(cores)).ranks[0]
    tied = RankPlace(
        rank=0,
        nodes=everyone.nodes,
        cpus=everyone.cpus,
        coordinator=(cores[0],),
        workers=tuple((cpu,) for cpu in cores[1:]),
        coordinator_works=True,
        spin=True,
    )
    found = {"all cores, untied": everyone.loose(), "all cores, tied": tied}
    found["workers alone tied"] = replace(tied, coordinator=tied.cpus)
    found["the placement"] = place(topology).ranks[0]
    return found


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--out", type=Path, default=RESULTS / "crews.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    banks = banks_of(EXPERTS)
    windows = windows_of(*banks, LIMIT, TOPK, ROUTE_SCALE)
    x, weights = inputs(1)
    small, matrix = torch.randn(1, 512), torch.randn(512, 512)
    measured = crews(read_topology())
    steps: dict[str, list[float]] = {name: [] for name in measured}
    jobs: dict[str, list[float]] = {name: [] for name in measured}
    for turn in range(args.repeats + 1):
        for name, crew in measured.items():
            set_workers(crew)
            with bound(crew.coordinator):
                native.linear(small, matrix)
                several = [
                    seconds(lambda: native.expert_sums(x, distinct(1), weights, *banks, windows))
                    for _ in range(4)
                ]
                job = seconds(lambda: [native.linear(small, matrix) for _ in range(200)]) / 200
            if turn:
                steps[name].append(statistics.median(several))
                jobs[name].append(job)
    first = steps["all cores, untied"]
    found: dict[str, Any] = {
        **fingerprint(),
        "repeats": args.repeats,
        "load before": round(os.getloadavg()[0], 1),
    }
    for name, crew in measured.items():
        ratios = [ours / theirs for ours, theirs in zip(steps[name], first, strict=True)]
        found[name] = {
            "threads": crew.threads,
            "experts of a row, ms": round(1e3 * statistics.median(steps[name]), 2),
            "its ratio to untied": round(statistics.median(ratios), 3),
            "a small job, us": round(1e6 * statistics.median(jobs[name]), 1),
        }
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
