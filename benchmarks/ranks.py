"""Time a token of one rank beside one of several at equal threads in all, and count exchanges.

One process holds one rank, another the leader of several; they continue the same prompt in turn,
and the verdict is the median of the turns' ratios. Beside it: the ratio of both lower quartiles,
which other work on the machine reaches less; calls and bytes of a token; and what a load takes from
the disk once the checkpoint was dropped from the system's cache. Writes a JSON file with machine
and date.

    python -m benchmarks.ranks
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.origin import origin
from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import Cut
from deskside.config.engine import EngineOptions
from deskside.core import SamplingParams
from deskside.distributed.group import Group
from deskside.layout.folder import resolve
from deskside.llm import LLM, Result

RESULTS = Path(__file__).parent / "results"
MODEL = "deskside-mini"
PROMPT = "def fibonacci(n):"
OUTPUT = 96


def serve(ranks: int, threads: int, speculation: str) -> None:
    """Open; say what that took from the disk; then continue the prompt for every line of input."""
    width = int(speculation) if speculation.isdigit() else speculation
    options = EngineOptions(
        tp=ranks,
        threads=max(1, threads // ranks),
        kv_tokens=4096,
        speculation=width,  # type: ignore[arg-type]
        numerics="exact",
    )
    with LLM.open(MODEL, options) as llm:
        ensemble = llm._runtime.ensemble
        pids = (os.getpid(), *ensemble.pids)
        print(json.dumps({"disk_bytes": sum(map(read_bytes, pids))}), flush=True)
        for _ in sys.stdin:
            print(json.dumps(continued(llm, ensemble.group)), flush=True)


def continued(llm: LLM, group: Group) -> dict[str, Any]:
    """Continue the prompt by one token, then by many; what the first needs is no token's cost."""
    calls, nbytes, _ = _counted(llm, group, 1)
    more_calls, more_bytes, result = _counted(llm, group, OUTPUT)
    count = OUTPUT - 1
    return {
        "token_s": result.decode_s / count,
        "calls_a_token": (more_calls - calls) / count,
        "bytes_a_token": (more_bytes - nbytes) / count,
        "tokens": result.token_ids,
    }


def _counted(llm: LLM, group: Group, tokens: int) -> tuple[int, int, Result]:
    calls, nbytes = group.traffic.calls, group.traffic.nbytes
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    (result,) = llm.generate([PROMPT], sampling)
    return group.traffic.calls - calls, group.traffic.nbytes - nbytes, result


def read_bytes(pid: int) -> int:
    """Return what a process took from the disk."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


class Peer:
    """A process that has opened the model."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.disk_bytes = int(self._answer()["disk_bytes"])

    def ask(self) -> dict[str, Any]:
        """Let it continue the prompt once."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def opened(ranks: int, threads: int, speculation: str) -> Iterator[Peer]:
    """Open the model in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.ranks", "--one", str(ranks)]
    command += ["--threads", str(threads), "--speculation", speculation]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    with process:
        yield Peer(process)
        assert process.stdin is not None
        process.stdin.close()


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
    found = {}
    for state in ("warm", "cold"):
        if state == "cold":
            drop()
        with opened(ranks, threads, "3") as peer:  # with the drafter, so that all is read
            found[state] = peer.disk_bytes
    size = sum(path.stat().st_size for path in shards())
    read = found["cold"] - found["warm"]
    tensors = [entry.tensor for entry in Checkpoint.open(resolve(MODEL)).entries()]
    asked = sum(Cut(rank, ranks).bytes_read(one) for rank in range(ranks) for one in tensors)
    return {
        "ranks": ranks,
        "bytes": read,
        "checkpoint": size,
        "share": read / size,
        "asked_of_the_system": asked,
        "asked_share": asked / size,
    }


def rounds(count: int, several: int, threads: int, speculation: str) -> dict[str, Any]:
    """Measure both in turn and compare within each turn."""
    with opened(1, threads, speculation) as one, opened(several, threads, speculation) as other:
        pairs = [(one.ask(), other.ask()) for _ in range(1 + count)][1:]
    assert all(a["tokens"] == b["tokens"] for a, b in pairs), "the bits of one rank"
    ratios = [b["token_s"] / a["token_s"] for a, b in pairs]
    quiet = [
        statistics.quantiles(turn["token_s"] for turn in turns)[0]
        for turns in zip(*pairs, strict=True)
    ]
    last = pairs[-1][1]
    return {
        "speculation": speculation,
        "ranks": several,
        "threads": threads,
        "one_s": [a["token_s"] for a, _ in pairs],
        "several_s": [b["token_s"] for _, b in pairs],
        "ratio": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)},
        "ratio_of_lower_quartiles": quiet[1] / quiet[0],
        "calls_a_token": last["calls_a_token"],
        "bytes_a_token": last["bytes_a_token"],
    }


def main() -> None:
    """Measure all and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=int, help="be a process of so many ranks")
    parser.add_argument("--speculation", default="off")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS / "ranks.json")
    asked = parser.parse_args()
    if asked.one:
        serve(asked.one, asked.threads, asked.speculation)
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
