"""Count what the target accepts of the drafter's proposals, in the engine and in the training code.

Many held-out prompts are continued at once: acceptance depends on no clock and on no company. With
`--report` the figures stand beside those of the training's own evaluation, which continues the
same prompts in another program. Width rules are compared by cost tables instead of clocks: a rate
is tokens over the summed costs of the steps. Writes JSON.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.origin import origin
from deskside.config.engine import EngineOptions
from deskside.core import Request, SamplingParams
from deskside.layout.folder import resolve
from deskside.llm import LLM
from deskside.speculate.costs import CostTable
from training.evaluate_drafter import prompts_of

RESULTS = Path(__file__).parent / "results"
BLOCK = 5
RULES: dict[str, dict[str, Any]] = {
    "width 5": {"speculation": BLOCK, "fallback": False},
    "stop": {"width_rule": "stop", "fallback": False},
    "expect": {"width_rule": "expect", "fallback": False},
    "argmax": {"width_rule": "biased-argmax", "fallback": False},
    "default": {},
}
TABLES = {
    "flat": CostTable.measured(0.80, {1: 1.0, 2: 1.11, 3: 1.14, 4: 1.34, 5: 1.40, 6: 1.44}),
    "steep": CostTable.measured(0.40, {1: 1.0, 6: 2.7}),
    "costly first": CostTable.measured(0.39, {1: 1.0, 2: 1.5, 3: 1.75, 4: 2.2, 5: 2.43, 6: 2.6}),
}
"""Shapes that machines have had, in forwards of one row."""
TOGETHER = 16


def figures(steps: list[tuple[int, int]], tokens: int, costs: CostTable | None) -> dict[str, Any]:
    """Sum up steps of (verified, accepted) that brought `tokens` tokens."""
    reached, stayed = [0] * BLOCK, [0] * BLOCK
    for verified, accepted in steps:
        for place in range(min(verified, accepted + 1)):
            reached[place] += 1
            stayed[place] += place < accepted
    verified = sum(verified for verified, _ in steps)
    rate = {}
    if costs is not None:
        spent = sum(costs.step(1 + verified) for verified, _ in steps)
        rate["rate_by_table"] = round(tokens * costs.forward(1) / spent, 4)
    return {
        **rate,
        "steps": len(steps),
        "tokens_per_step": round(tokens / len(steps), 4),
        "verified": verified,
        "accepted_share": round(sum(accepted for _, accepted in steps) / max(verified, 1), 4),
        "acceptance": [
            round(a / n, 4) if n else None for a, n in zip(stayed, reached, strict=True)
        ],
        "reached": reached,
    }


def count(
    llm: LLM, prompts: list[list[int]], params: SamplingParams, costs: CostTable | None = None
) -> dict[str, Any]:
    """Continue prompts, some at a time, and sum up their decode steps."""
    if costs is not None:
        llm._runtime.engine._speculation.stored = costs  # type: ignore[attr-defined]
    scheduler, engine = llm._runtime.scheduler, llm._runtime.engine
    steps: list[tuple[int, int]] = []
    tokens = trips = 0
    for number, prompt in enumerate(prompts):
        # One seed for all would draw the same numbers at the same places of every text.
        scheduler.submit(Request(tuple(prompt), replace(params, seed=number)))
    begun = set()
    while not scheduler.idle:
        output = engine.step(scheduler.plan_step())
        scheduler.learn(output)
        for sequence, emission in output.emissions.items():
            if sequence in begun:
                steps.append((emission.verified, emission.accepted))
                tokens += len(emission.tokens)
                trips += emission.pause == "trip"
            elif emission.tokens:
                begun.add(sequence)
    return {**figures(steps, tokens, costs), "trips": trips}


def main() -> None:
    """Count, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="deskside-mini")
    parser.add_argument("--code", type=Path, help="held_out.jsonl of the corpus")
    parser.add_argument("--prose", type=Path, help="held_out_prose.jsonl of the corpus")
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--temperatures", type=float, nargs="+", default=(0.0, 1.0))
    parser.add_argument("--report", type=Path, help="the training's evaluation, to stand beside")
    parser.add_argument("--out", type=Path, default=RESULTS / "acceptance.json")
    args = parser.parse_args()
    report = json.loads(args.report.read_text(encoding="utf-8")) if args.report else {}
    tokenizer = resolve(args.model) / "tokenizer.json"
    found: dict[str, Any] = {**origin(), "threads": args.threads}
    for name in args.rules.split(","):
        options = EngineOptions(threads=args.threads, max_running=TOGETHER, **RULES[name])
        llm = LLM.open(args.model, options)
        ruled = options.speculation == "auto" and not options.fallback
        for kind in ("code", "prose"):
            if getattr(args, kind) is None:
                continue
            prompts = prompts_of(getattr(args, kind), tokenizer, args.files, args.prompt).tolist()
            for temperature in args.temperatures:
                key = f"temperature {temperature:.0f}"
                params = SamplingParams(temperature=temperature, max_tokens=args.tokens)
                place = found.setdefault(kind, {"prompts": len(prompts)}).setdefault(key, {})
                if ruled:
                    place[name] = {n: count(llm, prompts, params, t) for n, t in TABLES.items()}
                else:
                    place[name] = count(llm, prompts, params)
                if name == "width 5" and kind in report:
                    beside(place[name], report[kind][key]["all"]["acceptance"])
                print(kind, key, name, json.dumps(place[name]), flush=True)
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def beside(counted: dict[str, Any], theirs: list[float]) -> None:
    """Put the training's figures beside ours."""
    counted["training"] = theirs
    apart = (abs(a - b) for a, b in zip(counted["acceptance"], theirs, strict=True))
    counted["farthest"] = round(max(apart), 4)


if __name__ == "__main__":
    main()
