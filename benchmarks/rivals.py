"""Time the compiled experts beside another program's, at the real model's shape.

The rival runs in a process and an environment of its own, and is stopped while it has no turn, so
that its threads take no core. Both run randomly chosen distinct experts out of banks far larger
than the caches, in turns. To make the environment of kt-kernel:

    python -m venv kt && kt/bin/pip install kt-kernel gguf
    python -m benchmarks.rivals --python kt/bin/python

Writes a JSON file with machine, date and commit.
"""

import argparse
import json
import signal
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.experts import (
    EXPERTS,
    LIMIT,
    RESULTS,
    ROUTE_SCALE,
    ROWS,
    THREADS,
    TOPK,
    Banks,
    banks_of,
    distinct,
    fingerprint,
    inputs,
    read_experts,
    seconds,
    spread,
)
from deskside.kernels import native
from deskside.ops.integer_moe import Windows, windows_of

KT = Path(__file__).parent / "rival_kt.py"
PROMPT_ROWS = 512


@dataclass(frozen=True)
class Rival:
    """Another program's experts, asleep between turns."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, python: Path, threads: int) -> "Rival":
        """Start the process and wait until it has loaded."""
        rival = cls(
            subprocess.Popen(
                [str(python), str(KT), str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        while rival._line() != "ready":
            pass
        rival.process.send_signal(signal.SIGSTOP)
        return rival

    def seconds(self, rows: int) -> float:
        """Run so many rows."""
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None
        print(rows, file=self.process.stdin, flush=True)
        taken = float(self._line().split()[0])
        self.process.send_signal(signal.SIGSTOP)
        return taken

    def end(self) -> None:
        """Let the process end by itself."""
        self.process.send_signal(signal.SIGCONT)
        self.process.communicate()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the rival ended with code {self.process.wait()}")
        return line.strip()


def measure(banks: Banks, windows: Windows, rival: Rival, repeats: int) -> dict[str, Any]:
    """Let read, ours and the rival take turns at every number of rows."""
    nbytes = sum(one.nbytes for one in banks) // EXPERTS * TOPK
    found: dict[str, Any] = {}
    for rows in ROWS:
        taken: dict[str, list[float]] = {"read": [], "ours": [], "rival": []}
        for turn in range(repeats + 1):
            x, weights = inputs(rows)
            ids = distinct(rows)
            read = seconds(lambda: read_experts(banks, rows * TOPK))  # noqa: B023
            ours = seconds(lambda: native.expert_sums(x, ids, weights, *banks, windows))  # noqa: B023
            theirs = rival.seconds(rows)
            if turn:
                for name, value in (("read", read), ("ours", ours), ("rival", theirs)):
                    taken[name].append(value * 1e3)
        read_ms = statistics.median(taken["read"])
        found[f"{rows} rows"] = {
            **{f"{name}, ms": spread(values) for name, values in taken.items()},
            "read GB/s": round(rows * nbytes / read_ms / 1e6, 2),
            "ours, percent of read": round(100 * read_ms / statistics.median(taken["ours"]), 1),
            "rival, percent of read": round(100 * read_ms / statistics.median(taken["rival"]), 1),
            "rival's time over ours, pairs": spread(
                [b / a for a, b in zip(taken["ours"], taken["rival"], strict=True)]
            ),
        }
    found[f"{PROMPT_ROWS} rows, ms"] = measure_prompt(banks, windows, rival)
    return found


def measure_prompt(banks: Banks, windows: Windows, rival: Rival) -> dict[str, Any]:
    """Run a prompt by both."""
    x, weights = inputs(PROMPT_ROWS)
    ids = torch.stack([torch.randperm(EXPERTS)[:TOPK] for _ in range(PROMPT_ROWS)])
    ours = [seconds(lambda: native.moe(x, ids, weights, *banks, windows)) * 1e3 for _ in range(3)]
    theirs = [rival.seconds(PROMPT_ROWS) * 1e3 for _ in range(3)]
    return {"ours": spread(ours[1:]), "rival": spread(theirs[1:])}


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, help="of kt-kernel's environment")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS / "rivals.json")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    banks = banks_of(EXPERTS)
    windows = windows_of(*banks, LIMIT, TOPK, ROUTE_SCALE)
    version = subprocess.check_output(
        [args.python, "-c", "from importlib.metadata import version; print(version('kt-kernel'))"],
        text=True,
    )
    found = {**fingerprint(), "rival": f"kt-kernel {version.strip()}", "repeats": args.repeats}
    for threads in THREADS:
        native.set_threads(threads)
        rival = Rival.start(args.python, threads)
        found[f"{threads} threads"] = measure(banks, windows, rival, args.repeats)
        rival.end()
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
