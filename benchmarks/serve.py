"""Time the service: first token, time between tokens, throughput, and what HTTP adds.

Starts `deskside serve`, and opens the same model in this process; both run in turn on the same
threads, never at once. Prints a table and writes a JSON file with machine and date. Prompts are the
source of a module of Python's own library, so no acceptance of proposals seen here is typical of
anything else.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from typing import Any

from benchmarks.origin import origin
from deskside.config.engine import EngineOptions
from deskside.core import SamplingParams
from deskside.llm import LLM

RESULTS = Path(__file__).parent / "results"
JSON = {"Content-Type": "application/json"}
OUTPUT = 64
PROMPT = 64
LONG = 4000


@dataclass
class Source:
    """Tokens of a text; no two prompts out of it begin alike, so that none can be kept."""

    tokens: Sequence[int]
    _at: int = 0

    def take(self, length: int) -> Sequence[int]:
        start = self._at % (len(self.tokens) - length)
        self._at += PROMPT
        return self.tokens[start : start + length]


@dataclass
class Timed:
    """The moments at which an answer was asked for and at which its tokens came."""

    started: float = field(default_factory=time.perf_counter)
    tokens: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        return self.tokens[0] - self.started

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)]

    @property
    def decode(self) -> float:
        """Tokens a second after the first."""
        return (len(self.tokens) - 1) / (self.tokens[-1] - self.tokens[0])


def in_process(llm: LLM, prompt: Sequence[int], tokens: int) -> Timed:
    """Run one answer in this process."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    timed = Timed()
    for delta in llm.stream(prompt, params):
        timed.tokens += [time.perf_counter()] * len(delta.tokens)
    return timed


def over_http(
    service: str, prompt: Sequence[int], tokens: int, first: Event | None = None
) -> Timed:
    """Run one answer over HTTP; a moment is that of a chunk with text.

    The client is the standard library's, connected beforehand: what a client library takes for
    itself is no time of the service.
    """
    body = {
        "prompt": list(prompt),
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    with closing(HTTPConnection(service, timeout=300)) as connection:
        connection.connect()
        timed = Timed()
        connection.request("POST", "/v1/completions", json.dumps(body), JSON)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        for line in answer:
            if line.startswith(b"data: {") and b'"text":""' not in line:
                timed.tokens.append(time.perf_counter())
                if first is not None:
                    first.set()
    return timed


@contextmanager
def serving(options: Sequence[str]) -> Iterator[str]:
    """Start a service and yield its host and port once it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "deskside", "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        address = process.stderr.readline().split()[-1].removeprefix("http://")
        assert process.stdout.readline() == "ready to serve\n"
        with ThreadPoolExecutor(1) as pool:
            drained = pool.submit(process.stderr.read)  # a full pipe would stop the service
            try:
                yield address
            finally:
                process.terminate()
                process.wait()
                drained.result()
    finally:
        process.kill()


def percentiles(values: Sequence[float], unit: float = 1000.0) -> dict[str, float]:
    """Return the median and two tails, in milliseconds by default."""
    ordered = sorted(value * unit for value in values)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99)}


Pair = tuple["Timed", "Timed"]
"""The same continuation in this process and over HTTP."""


def pairs(llm: LLM, service: str, text: Source, repeats: int) -> list[Pair]:
    """Run one stream in turn in this process and over HTTP.

    Which of the two comes first alternates: the second finds the other's data in the caches.
    """
    found: list[Pair] = []
    for turn in range(repeats + 1):
        prompt = text.take(PROMPT)
        if turn % 2:
            inside = in_process(llm, prompt, OUTPUT)
        outside = over_http(service, prompt, OUTPUT)
        if not turn % 2:
            inside = in_process(llm, prompt, OUTPUT)
        found.append((inside, outside))
    return found[1:]  # the first pair warms up


def slower(found: Sequence[Pair]) -> list[float]:
    """Return what decoding over HTTP takes, as a multiple, pair by pair."""
    return [(b.tokens[-1] - b.tokens[0]) / (a.tokens[-1] - a.tokens[0]) for a, b in found]


def overhead(starts: Sequence[Sequence[Pair]]) -> dict[str, Any]:
    """Say what HTTP adds, pair by pair, because the machine's speed changes over minutes.

    A process keeps the memory and the luck that it started with, so there are several starts.
    """
    inside, outside = zip(*(pair for found in starts for pair in found), strict=True)
    ratios = [ratio for found in starts for ratio in slower(found)]
    first = statistics.median(b.first - a.first for a, b in zip(inside, outside, strict=True))
    rate = statistics.median(one.decode for one in inside if len(one.tokens) > 1)
    return {
        "starts": len(starts),
        "repeats": len(ratios),
        "first_token_ms": {
            "in_process": percentiles([one.first for one in inside]),
            "http": percentiles([one.first for one in outside]),
            "added": round(first * 1000, 3),
        },
        "decode_seconds_ratio": round(statistics.median(ratios), 4),
        "decode_seconds_ratio_quartiles": [
            round(at, 4) for at in statistics.quantiles(ratios, n=4)[::2]
        ],
        "decode_seconds_ratio_of_each_start": [
            round(statistics.median(slower(found)), 4) for found in starts
        ],
        "in_process_tok_s": round(rate, 1),
        "between_tokens_ms": percentiles([gap for one in outside for gap in one.gaps]),
    }


def throughput(service: str, text: Source, streams: int, rounds: int) -> dict[str, Any]:
    """Run so many streams at once and count all their tokens."""
    rates, answers = [], []
    for turn in range(rounds + 1):
        prompts = [text.take(PROMPT) for _ in range(streams)]
        started = time.perf_counter()
        with ThreadPoolExecutor(streams) as pool:
            done = list(pool.map(lambda prompt: over_http(service, prompt, OUTPUT), prompts))
        if turn:
            rates.append(streams * OUTPUT / (time.perf_counter() - started))
            answers += done
    return {
        "streams": streams,
        "tokens_per_s": round(statistics.median(rates), 1),
        "first_token_ms": percentiles([one.first for one in answers]),
        "between_tokens_ms": percentiles([gap for one in answers for gap in one.gaps]),
    }


def beside(service: str, text: Source, step_tokens: int) -> tuple[float, list[float]]:
    """Let a stream run while a long prompt comes.

    Returns:
        The seconds of a step of the prompt, and the stream's gaps while it came, as parts of that.
    """
    with ThreadPoolExecutor(2) as pool:
        begun = Event()
        stream = pool.submit(over_http, service, text.take(PROMPT), 128, begun)
        begun.wait()
        long = pool.submit(over_http, service, text.take(LONG), 2).result()
        other = stream.result()
    step = long.first / -(-LONG // (step_tokens - 1))
    gaps = [
        gap / step
        for gap, at in zip(other.gaps, other.tokens[1:], strict=False)
        if long.started < at <= long.tokens[0]
    ]
    return step, gaps


def fairness(service: str, text: Source, step_tokens: int, repeats: int) -> dict[str, Any]:
    """Say how a stream's gaps compare with the steps of a long prompt that comes beside it.

    One run has about as many gaps as the prompt has steps, and the 95th percentile of those is
    nearly their largest: so all runs count as one, and each one's own shows the spread.
    """
    runs = [beside(service, text, step_tokens) for _ in range(repeats)]
    over = [gap for _, gaps in runs for gap in gaps]
    return {
        "prompt": LONG,
        "step_tokens": step_tokens,
        "repeats": repeats,
        "gaps": len(over),
        "step_ms": round(statistics.median(step for step, _ in runs) * 1000, 3),
        "gap_over_step": percentiles(over, 1.0),
        "p95_over_step_of_each": sorted(percentiles(gaps, 1.0)["p95"] for _, gaps in runs),
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=15, help="of each start")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long-repeats", type=int, default=15)
    parser.add_argument("--step-tokens", type=int, default=256)
    parser.add_argument("--speculation", default="off")
    parser.add_argument("--out", type=Path, default=RESULTS / "serve.json")
    args = parser.parse_args()
    options = EngineOptions(
        threads=args.threads, max_running=16, speculation=args.speculation, prefix_cache="off"
    )
    with LLM.open("deskside-mini", options) as llm:
        ids = llm.tokenizer.encode(Path(argparse.__file__).read_text(encoding="utf-8"))
    text = Source(ids)
    found: dict[str, Any] = {
        **origin(),
        "threads": args.threads,
        "output": OUTPUT,
        "prompt": PROMPT,
    }
    flags = ["--threads", str(args.threads), "--max-running", "16", "--prefix-cache", "off"]
    flags += ["--step-tokens", str(args.step_tokens), "--speculation", args.speculation]
    starts = []
    for _ in range(args.starts):
        with LLM.open("deskside-mini", options) as llm, serving(flags) as service:
            starts.append(pairs(llm, service, text, args.repeats))
    found["one stream"] = overhead(starts)
    with serving(flags) as service:
        found["throughput"] = [throughput(service, text, n, args.rounds) for n in (1, 4, 16)]
        rates = [one["tokens_per_s"] for one in found["throughput"]]
        found["sixteen over one"] = round(rates[-1] / rates[0], 2)
        found["long prompt beside a stream"] = fairness(
            service, text, args.step_tokens, args.long_repeats
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
