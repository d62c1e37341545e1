"""Time a token of one rank beside one of several at equal threads in all, and count exchanges.

Every round starts each in a process of its own, in turn; the verdict is the median of the rounds'
ratios. Beside it: calls and bytes of a token, and what a load takes from the disk once the
checkpoint was dropped from the system's cache. Writes a JSON file with machine and date.

    python -m benchmarks.ranks --rounds 5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.origin import origin
from deskside.config.engine import EngineOptions
from deskside.core import SamplingParams
from deskside.layout.folder import resolve
from deskside.llm import LLM

RESULTS = Path(__file__).parent / "results"
MODEL = "deskside-mini"
PROMPT = "def fibonacci(n):"
OUTPUT = 96


def measured(ranks: int, threads: int, speculation: str) -> dict[str, Any]:
    """Open, continue a prompt a few times, and return medians of this process."""
    width = int(speculation) if speculation.isdigit() else speculation
    options = EngineOptions(
        tp=ranks,
        threads=max(1, threads // ranks),
        kv_tokens=4096,
        speculation=width,  # type: ignore[arg-type]
        numerics="exact",
    )
    sampling = SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True)
    started = time.perf_counter()
    with LLM.open(MODEL, options) as llm:
        opened = time.perf_counter() - started
        group = llm._runtime.ensemble.group
        pids = llm._runtime.ensemble.pids
        disk = sum(read_bytes(pid) for pid in (os.getpid(), *pids))
        llm.generate([PROMPT], sampling)
        decode: list[float] = []
        tokens: tuple[int, ...] = ()
        calls, nbytes = group.traffic.calls, group.traffic.nbytes
        for _ in range(5):
            (result,) = llm.generate([PROMPT], sampling)
            decode.append(result.decode_s / (OUTPUT - 1))
            tokens = result.token_ids
        count = 5 * OUTPUT
        return {
            "token_s": statistics.median(decode),
            "calls_a_token": (group.traffic.calls - calls) / count,
            "bytes_a_token": (group.traffic.nbytes - nbytes) / count,
            "open_s": opened,
            "disk_bytes": disk,
            "tokens": tokens,
        }


def read_bytes(pid: int) -> int:
    """Return what a process took from the disk."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def apart(ranks: int, threads: int, speculation: str) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.ranks", "--one", str(ranks)]
    command += ["--threads", str(threads), "--speculation", speculation]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def shards() -> Iterable[Path]:
    """Return the files of the checkpoint."""
    return sorted(resolve(MODEL).glob("*.safetensors"))


def drop() -> None:
    """Let the system forget the checkpoint's pages."""
    for path in shards():
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def loads(ranks: int, threads: int) -> dict[str, Any]:
    """Count what ranks take from the disk: a load of dropped files less one of cached files."""
    width = "3"  # with the drafter, so that every tensor is read
    apart(ranks, threads, width)
    warm = apart(ranks, threads, width)["disk_bytes"]
    drop()
    cold = apart(ranks, threads, width)["disk_bytes"]
    size = sum(path.stat().st_size for path in shards())
    return {"ranks": ranks, "bytes": cold - warm, "checkpoint": size, "share": (cold - warm) / size}


def rounds(count: int, several: int, threads: int, speculation: str) -> dict[str, Any]:
    """Measure both in turn and compare within each round."""
    pairs = [
        (apart(1, threads, speculation), apart(several, threads, speculation)) for _ in range(count)
    ]
    assert all(one["tokens"] == other["tokens"] for one, other in pairs), "the bits of one rank"
    ratios = [other["token_s"] / one["token_s"] for one, other in pairs]
    last = pairs[-1][1]
    return {
        "speculation": speculation,
        "ranks": several,
        "threads": threads,
        "one_s": [one["token_s"] for one, _ in pairs],
        "several_s": [other["token_s"] for _, other in pairs],
        "ratio": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)},
        "calls_a_token": last["calls_a_token"],
        "bytes_a_token": last["bytes_a_token"],
    }


def main() -> None:
    """Measure all and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=int)
    parser.add_argument("--speculation", default="off")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "ranks.json")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(asked.one, asked.threads, asked.speculation)))
        return
    found = {
        "origin": origin(),
        "load_average": os.getloadavg()[0],
        "tokens": [rounds(asked.rounds, 2, asked.threads, width) for width in ("off", "3")],
        "loads": [loads(ranks, asked.threads) for ranks in (1, 2, 4)],
    }
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["tokens"], indent=1), json.dumps(found["loads"], indent=1))


if __name__ == "__main__":
    main()
