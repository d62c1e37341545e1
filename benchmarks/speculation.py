"""Time decode with and without speculation, in turn, in one process; say where a step's time goes.

Every prompt is continued by every mode before the next prompt comes, so that drift of the machine
falls on all alike; ratios are taken within one repeat. Prompts are those of `benchmarks/prompts`
or, by options, the beginnings of documents (JSON lines with `text` and `project`). Writes JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.origin import origin
from deskside.config.engine import EngineOptions
from deskside.core import SamplingParams
from deskside.engine.speculation import Speculator
from deskside.llm import LLM

HERE = Path(__file__).parent
BLOCK = 5
MODES: dict[str, dict[str, Any]] = {
    "off": {"speculation": "off"},
    "stop": {"width_rule": "stop"},
    "expect": {"width_rule": "expect"},
    "backoff": {"fallback_backoff": True},
    "fixed": {"fallback_rule": "fixed"},
    "no fallback": {"fallback": False},
    **{str(width): {"speculation": width, "fallback": False} for width in range(BLOCK + 1)},
}


@dataclass
class Clock:
    """Seconds inside steps, and of these inside the model and the drafter."""

    step: float = 0.0
    model: float = 0.0

    def watch(self, llm: LLM) -> None:
        """Time the calls of a loaded model."""
        engine = llm._runtime.engine
        engine.step = self._timed("step", engine.step)  # type: ignore[method-assign]
        engine._model.forward = self._timed("model", engine._model.forward)  # type: ignore[method-assign]
        if isinstance(engine._speculation, Speculator):
            drafter = engine._speculation.drafter
            drafter.draft = self._timed("model", drafter.draft)  # type: ignore[method-assign]
            drafter.context = self._timed("model", drafter.context)  # type: ignore[method-assign]

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                setattr(self, name, getattr(self, name) + time.perf_counter() - started)

        return timed


@dataclass
class Tally:
    """What one mode did with all prompts of a kind in one repeat."""

    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    trips: int = 0
    probes: int = 0
    verified: list[int] = field(default_factory=lambda: [0] * BLOCK)
    """By place: proposals whose predecessors all stayed, and that were looked at."""
    accepted: list[int] = field(default_factory=lambda: [0] * BLOCK)
    looked_at: int = 0
    clock: Clock = field(default_factory=Clock)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Mode:
    """A model loaded in one mode."""

    llm: LLM
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.clock.watch(self.llm)

    @property
    def costs(self) -> str | None:
        """What the width rule and the controller count with."""
        speculation = self.llm._runtime.engine._speculation
        return speculation.costs.curve() if isinstance(speculation, Speculator) else None

    def run(self, prompt: Sequence[int], params: SamplingParams, tally: Tally) -> tuple[int, ...]:
        """Continue a prompt, add up its decode steps, and return its tokens."""
        begin: Clock | None = None
        for delta in self.llm.stream(prompt, params):
            if begin is None:  # the first token belongs to the prompt
                begin = Clock(self.clock.step, self.clock.model)
                continue
            tally.looked_at += delta.verified
            for place in range(min(delta.verified, delta.accepted + 1)):
                tally.verified[place] += 1
                tally.accepted[place] += place < delta.accepted
        assert begin is not None
        assert delta.result is not None
        result = delta.result
        tally.tokens += len(result.token_ids) - 1
        tally.seconds += result.decode_s
        tally.steps += result.acceptance.steps
        tally.trips += result.acceptance.trips
        tally.probes += result.acceptance.probes
        tally.clock.step += self.clock.step - begin.step
        tally.clock.model += self.clock.model - begin.model
        return result.token_ids


def options(threads: int, name: str, *, again: bool) -> EngineOptions:
    """Return a mode's options, with costs measured again or as the profile has them."""
    return EngineOptions(threads=threads, measure_costs=again, **MODES[name])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return minimum, median and maximum."""
    return {
        "min": round(min(values), 3),
        "median": round(statistics.median(values), 3),
        "max": round(max(values), 3),
    }


def summary(tallies: Sequence[Tally], plain: Sequence[Tally]) -> dict[str, Any]:
    """Return the figures of one mode: rates over the repeats, counts of the last."""
    last = tallies[-1]
    overhead = [1 - tally.clock.model / tally.clock.step for tally in tallies]
    found: dict[str, Any] = {
        "decode_tok_s": spread([tally.rate for tally in tallies]),
        "ratio_to_off": spread([t.rate / off.rate for t, off in zip(tallies, plain, strict=True)]),
        "step_ms": spread([1e3 * tally.clock.step / tally.steps for tally in tallies]),
        "engine_overhead_share": spread(overhead),
        "tokens_per_step": round(last.tokens / last.steps, 3),
    }
    if last.looked_at:
        found |= {
            "verified": last.looked_at,
            "accepted_share": round(sum(last.accepted) / last.looked_at, 4),
            "acceptance_by_place": [
                round(a / n, 4) if n else None
                for a, n in zip(last.accepted, last.verified, strict=True)
            ],
            "reached_by_place": last.verified,
            "trips": last.trips,
            "probes": last.probes,
        }
    return found


def measure(
    modes: dict[str, Mode], prompts: Sequence[Sequence[int]], params: SamplingParams, repeats: int
) -> dict[str, Any]:
    """Run all modes in turn over all prompts, after one prompt to warm up."""
    for mode in modes.values():
        mode.run(prompts[0], params, Tally())
    tallies: dict[str, list[Tally]] = {name: [] for name in modes}
    for _ in range(repeats):
        for name in modes:
            tallies[name].append(Tally())
        for prompt in prompts:
            texts = [mode.run(prompt, params, tallies[name][-1]) for name, mode in modes.items()]
            if params.temperature == 0:
                assert all(text == texts[0] for text in texts), "speculation changed greedy text"
    return {name: summary(found, tallies["off"]) for name, found in tallies.items()}


def own_prompts(llm: LLM, kind: str) -> list[Sequence[int]]:
    """Return the prompts of this folder."""
    files = sorted((HERE / "prompts").glob(f"{kind}_*.txt"))
    return [llm.tokenizer.prompt(f.read_text(encoding="utf-8").removesuffix("\n")) for f in files]


def documents(llm: LLM, path: Path, count: int, length: int) -> list[Sequence[int]]:
    """Return the first tokens of documents that are long enough, projects taking turns."""
    queues: dict[str, list[Sequence[int]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        ids = llm.tokenizer.prompt(document["text"])
        if len(ids) >= length:
            queues.setdefault(document["project"], []).append(ids[:length])
    found: list[Sequence[int]] = []
    while len(found) < count and any(queues.values()):
        found += [queue.pop(0) for queue in queues.values() if queue]
    return found[:count]


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="deskside-mini")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--modes", default=",".join(MODES), help="of: %(default)s")
    parser.add_argument("--code", type=Path, help="JSON lines of code documents")
    parser.add_argument("--prose", type=Path, help="JSON lines of prose documents")
    parser.add_argument("--kinds", default="code,prose")
    parser.add_argument("--files", type=int, default=16, help="documents of a kind")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a document's prompt")
    parser.add_argument("--code-tokens", type=int, default=256)
    parser.add_argument("--prose-tokens", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "speculation.json")
    args = parser.parse_args()
    names = ["off", *(name for name in args.modes.split(",") if name != "off")]
    modes = {
        # Costs are measured once, by the first that counts with them: what an earlier start
        # measured, on a machine that was busier, would stand in the profile.
        name: Mode(LLM.open(args.model, options(args.threads, name, again=place == 1)))
        for place, name in enumerate(names)
    }
    found: dict[str, Any] = {
        **origin(),
        "threads": args.threads,
        "repeats": args.repeats,
        "temperature": args.temperature,
        "costs": next(filter(None, (mode.costs for mode in modes.values())), None),
    }
    for kind in args.kinds.split(","):
        llm, path = modes["off"].llm, getattr(args, kind)
        prompts = documents(llm, path, args.files, args.prompt) if path else own_prompts(llm, kind)
        tokens = getattr(args, f"{kind}_tokens")
        params = SamplingParams(
            temperature=args.temperature, max_tokens=tokens, ignore_eos=True, seed=1
        )
        found[kind] = {
            "prompts": len(prompts),
            "source": path.name if path else "benchmarks/prompts",
            "output": tokens,
            "modes": measure(modes, prompts, params, args.repeats),
        }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
