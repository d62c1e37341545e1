"""Time what a grammar costs a decode step, with and without speculation, in turn, in one process.

Two ways. Under an expression that admits every text the greedy text is the one without a grammar,
so both runs do the same work but for the masks: their ratio says the whole cost. Under a schema the
share of the step that goes into guides and into masked laws is timed from inside. One thread does
all the work and its processor time is what is read, as other work on the machine does not add to
it. Writes JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.origin import origin
from deskside.config.engine import EngineOptions
from deskside.core import Constraint, SamplingParams
from deskside.llm import LLM
from deskside.state.grammar import Grammars
from deskside.text.grammar import json_grammar, regex_grammar

HERE = Path(__file__).parent
PROMPT = "class Record:\n    "
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "entries": {
            "type": "array",
            "minItems": 8,
            "maxItems": 8,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 4, "maxLength": 16},
                    "kind": {"enum": ["file", "folder", None]},
                    "size": {"type": "integer", "minimum": 0, "maximum": 9999},
                },
                "required": ["name", "kind", "size"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["entries"],
    "additionalProperties": False,
}


@dataclass
class Clock:
    """Seconds in one kind of call."""

    seconds: float = 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - started

        return timed


def run(
    llm: LLM, stepping: Clock, grammar: str | None, temperature: float, tokens: int
) -> tuple[float, Any]:
    """Return seconds a step, that of the prompt among them, and the result."""
    stepping.seconds = 0.0
    held = None if grammar is None else Constraint(grammar)
    params = SamplingParams(
        temperature=temperature, seed=3, max_tokens=tokens, constraint=held, ignore_eos=False
    )
    (result,) = llm.generate([PROMPT], params)
    return stepping.seconds / (1 + result.acceptance.steps), result


def measure(speculation: Literal["off", "auto"], repeats: int, tokens: int) -> dict[str, Any]:
    """Return the costs of one mode."""
    options = EngineOptions(kv_tokens=4096, speculation=speculation, threads=1)
    free, schema = regex_grammar(r"(?s:.*)"), json_grammar(SCHEMA)
    found: dict[str, Any] = {}
    with LLM.open("deskside-mini", options) as llm:
        asked, stepping = Clock(), Clock()
        engine = llm._runtime.engine
        engine.step = stepping.timed(engine.step)  # type: ignore[method-assign]
        grammars = engine._owners.grammars
        assert isinstance(grammars, Grammars)
        Grammars.allowed = asked.timed(Grammars.allowed)  # type: ignore[method-assign]
        for temperature in (0.0, 1.0):
            ratios, shares, steps = [], [], 0
            run(llm, stepping, schema, temperature, tokens)  # compiles, and fills caches
            for _ in range(repeats):
                plain, expected = run(llm, stepping, None, temperature, tokens)
                masked, same = run(llm, stepping, free, temperature, tokens)
                if same.token_ids == expected.token_ids:
                    ratios.append(masked / plain)
                asked.seconds = 0.0
                step, result = run(llm, stepping, schema, temperature, tokens)
                steps = result.acceptance.steps
                shares.append(asked.seconds / (step * (1 + steps)))
            found[f"T={temperature:g}"] = {
                "step_with_masks_to_without": round(statistics.median(ratios), 4),
                "spread": [round(min(ratios), 4), round(max(ratios), 4)],
                "repeats": len(ratios),
                "share_of_guides_in_a_step_under_a_schema": round(statistics.median(shares), 4),
                "steps_under_the_schema": steps,
            }
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "masks.json")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {**origin(), "prompt": PROMPT, "tokens": options.tokens}
    result["off"] = measure("off", options.repeats, options.tokens)
    result["auto"] = measure("auto", options.repeats, options.tokens)
    options.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
