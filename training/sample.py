"""Continues the prompts of prompts.json with the product itself and writes the answers down.

Greedy and sampled (temperature 0.8, top-p 0.95, seed 1); says how many greedy answers end in a
loop: their last 48 tokens repeat with a period of at most 24. Without the drafter: drawn text
depends on how many proposals were verified at a time, and that on the machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from deskside.config.engine import EngineOptions
from deskside.core import SamplingParams
from deskside.llm import LLM

if TYPE_CHECKING:
    from collections.abc import Sequence


def loops(ids: Sequence[int]) -> bool:
    """Whether the tail repeats."""
    tail = ids[-48:]
    return len(tail) == 48 and any(tail[:-period] == tail[period:] for period in range(1, 25))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="deskside-mini")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    prompts = json.loads((Path(__file__).parent / "prompts.json").read_text())
    greedy = SamplingParams(temperature=0.0, max_tokens=args.tokens)
    drawn = SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=args.tokens)
    with LLM.open(args.model, EngineOptions(speculation="off")) as llm:
        both = zip(llm.generate(prompts, greedy), llm.generate(prompts, drawn), strict=True)
    rows = [
        {
            "prompt": prompt,
            "greedy": likeliest.text,
            "loops": loops(likeliest.token_ids),
            "sampled": sampled.text,
        }
        for prompt, (likeliest, sampled) in zip(prompts, both, strict=True)
    ]
    looping = sum(bool(row["loops"]) for row in rows)
    text = json.dumps({"tokens": args.tokens, "loops": looping, "rows": rows}, indent=1)
    args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
