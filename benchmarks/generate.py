"""Time prefill and decode of `deskside-mini` beside transformers on the same dequantised weights.

Both run in turn in one process on the same threads; the rates are medians over repeats with the
spread beside them, and the verdict is a ratio of medians. Writes a JSON file with machine and date.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.origin import origin
from deskside.checkpoint.index import Checkpoint
from deskside.config.engine import EngineOptions
from deskside.core import SamplingParams
from deskside.layout.folder import resolve
from deskside.llm import LLM
from tests.miniature import read_floats
from tests.oracle.peer import peer_of

RESULTS = Path(__file__).parent / "results"
OUTPUT = 64
PROMPTS = (64, 1024)

Run = Callable[[Sequence[int]], tuple[float, float]]
"""Continue a prompt; return prefill and decode seconds."""


def deskside_run(llm: LLM) -> Run:
    """Time our own stream."""
    params = SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True)

    def run(prompt: Sequence[int]) -> tuple[float, float]:
        *_, last = llm.stream(prompt, params)
        assert last.result is not None
        return last.result.prefill_s, last.result.decode_s

    return run


def transformers_run(peer: transformers.PreTrainedModel, threads: int) -> Run:
    """Time the peer's own generate, once for one token and once for all."""

    def seconds(prompt: Sequence[int], tokens: int) -> float:
        ids = torch.tensor([prompt])
        started = time.perf_counter()
        with torch.inference_mode():
            output = peer.generate(  # type: ignore[operator]
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
            )
        assert output.shape[1] == len(prompt) + tokens
        return time.perf_counter() - started

    def run(prompt: Sequence[int]) -> tuple[float, float]:
        own = torch.get_num_threads()
        torch.set_num_threads(threads)  # our engine leaves torch one thread beside its kernels
        first = seconds(prompt, 1)
        rest = seconds(prompt, OUTPUT) - first
        torch.set_num_threads(own)
        return first, rest

    return run


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return minimum, median and maximum."""
    return {
        "min": round(min(values), 2),
        "median": round(statistics.median(values), 2),
        "max": round(max(values), 2),
    }


def measure(runs: dict[str, Run], prompt: Sequence[int], repeats: int) -> dict[str, Any]:
    """Run all in turn, `repeats` times after one warm-up; return rates by name."""
    prefill: dict[str, list[float]] = {name: [] for name in runs}
    decode: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            before, after = run(prompt)
            if turn:
                prefill[name].append(len(prompt) / before)
                decode[name].append((OUTPUT - 1) / after)
    return {
        name: {"prefill_tok_s": spread(prefill[name]), "decode_tok_s": spread(decode[name])}
        for name in runs
    }


def ratio(rates: dict[str, Any], kind: str) -> float:
    """Return our median over the better median of the peer's two types."""
    peers = [found[kind]["median"] for name, found in rates.items() if name != "deskside"]
    return round(float(rates["deskside"][kind]["median"] / max(peers)), 2)


def main() -> None:
    """Measure, print a table and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="deskside-mini")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "generate.json")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    llm = LLM.open(args.model, EngineOptions(threads=args.threads, prefix_cache="off"))
    folder = resolve(args.model)
    peer = peer_of(Checkpoint.open(folder).config, read_floats(folder))
    half = peer_of(Checkpoint.open(folder).config, read_floats(folder)).bfloat16()
    runs = {
        "deskside": deskside_run(llm),
        "transformers float32": transformers_run(peer, args.threads),
        "transformers bfloat16": transformers_run(half, args.threads),
    }
    text = llm.tokenizer.encode(Path(argparse.__file__).read_text(encoding="utf-8"))
    found: dict[str, Any] = {
        **origin(),
        "threads": args.threads,
        "transformers": transformers.__version__,
        "repeats": args.repeats,
        "output": OUTPUT,
    }
    for length in PROMPTS:
        rates = measure(runs, text[:length], args.repeats)
        rates["ratio to the faster peer"] = {
            kind: ratio(rates, kind) for kind in ("prefill_tok_s", "decode_tok_s")
        }
        found[f"prompt of {length}"] = rates
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
