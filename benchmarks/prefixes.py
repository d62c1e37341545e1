"""Time to the first token behind 4,096 shared tokens of prompt, with prefix reuse and without.

`deskside-mini` answers prompts that begin alike and end differently, in turn by two models of one
process: one takes up the shared part, the other computes it each time. The verdict is a ratio of
medians. Writes a JSON file.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.origin import origin
from deskside.config.engine import EngineOptions
from deskside.core import SamplingParams
from deskside.llm import LLM, Result

RESULTS = Path(__file__).parent / "results"
SHARED = 4096
OWN = (1, 32, 200)
"""Tokens of each prompt behind the shared ones."""
KV_TOKENS = 16_384


def answer(llm: LLM, prompt: Sequence[int]) -> Result:
    """Continue a prompt by a few tokens."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=5)
    *_, last = llm.stream(prompt, params)
    assert last.result is not None
    return last.result


def measured(warm: LLM, cold: LLM, own: int, repeats: int, draw: Random) -> dict[str, Any]:
    """Answer prompts in turn with both models and return their times to the first token."""
    vocab = warm.plan.spec.vocab
    shared = draw.choices(range(3, vocab), k=SHARED)
    answer(warm, [*shared, 3])
    seconds: dict[str, list[float]] = {"reused": [], "computed": []}
    for _ in range(repeats):
        prompt = [*shared, *draw.choices(range(3, vocab), k=own)]
        results = {"reused": answer(warm, prompt), "computed": answer(cold, prompt)}
        assert results["reused"].cached_tokens == SHARED
        assert results["computed"].cached_tokens == 0
        assert results["reused"].logprobs == results["computed"].logprobs
        for name, result in results.items():
            seconds[name].append(result.first_token_s)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "own tokens": own,
        **{f"{name}, ms": [round(1000 * v, 2) for v in sorted(vs)] for name, vs in seconds.items()},
        "ratio of medians": round(medians["computed"] / medians["reused"], 2),
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "prefixes.json")
    args = parser.parse_args()
    options = {"kv_tokens": KV_TOKENS, "threads": args.threads, "max_running": 1}
    draw = Random(0)
    with (
        LLM.open("deskside-mini", EngineOptions(**options)) as warm,
        LLM.open("deskside-mini", EngineOptions(**options, prefix_cache="off")) as cold,
    ):
        runs = [measured(warm, cold, own, args.repeats, draw) for own in OWN]
        found = {
            **origin(),
            "shared tokens": SHARED,
            "repeats": args.repeats,
            "snapshot bytes": warm.plan.capacity.snapshot_bytes,
            "page bytes": warm.plan.capacity.page_bytes,
            "runs": runs,
        }
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
