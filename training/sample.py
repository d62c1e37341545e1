"""Continues the prompts of prompts.json with the product itself and writes the answers down.

Greedy and sampled (temperature 0.8, top-p 0.95, seed 1); says how many greedy answers end in a
loop: their last 48 tokens repeat with a period of at most 24.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

SAMPLED = ("--temperature", "0.8", "--top-p", "0.95", "--seed", "1")


def answer(prompt: str, model: str, tokens: int, options: tuple[str, ...]) -> dict[str, object]:
    """One continuation as the command line prints it with --json."""
    command = ["deskside", "run", "--model", model, "--json", "--max-tokens", str(tokens)]
    done = subprocess.run(
        [*command, *options, "--file", "-"],
        input=prompt,
        text=True,
        capture_output=True,
        check=True,
    )
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def loops(ids: list[int]) -> bool:
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
    rows, looping = [], 0
    for prompt in prompts:
        greedy = answer(prompt, args.model, args.tokens, ("--temperature", "0"))
        sampled = answer(prompt, args.model, args.tokens, SAMPLED)
        looped = loops(list(greedy["token_ids"]))  # type: ignore[call-overload]
        looping += looped
        rows.append(
            {
                "prompt": prompt,
                "greedy": greedy["text"],
                "loops": looped,
                "sampled": sampled["text"],
            }
        )
    text = json.dumps({"tokens": args.tokens, "loops": looping, "rows": rows}, indent=1)
    args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
