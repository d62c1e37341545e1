"""Several ranks and widths that change: the leader's alone count, and the text is that of one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from deskside.config.engine import EngineOptions
from deskside.core import FinishReason, Request, SamplingParams
from deskside.engine.follower import Follower
from deskside.engine.lead import Led
from deskside.llm import LLM
from deskside.runtime.measure import measured
from deskside.speculate.costs import MEASURED_ROWS, CostTable
from tests.distributed.led import Ranks, led
from tests.distributed.test_engine import PROMPTS, folder, options

__all__ = ["folder"]

FLAT = CostTable(0.1, MEASURED_ROWS, tuple(1 + 0.02 * n for n in MEASURED_ROWS))
"""Costs under which a proposal pays from a confidence somewhere in the middle on."""
AUTO: dict[str, object] = {"speculation": "auto", "fallback_min_drafted": 6, "fallback_steps": 3}


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Let ranks measure, count by fixed costs, and return the widths that are told."""
    told: list[int] = []
    chosen = Led.chosen

    def noted(lead: Led, proposals: Sequence[Sequence[int]]) -> None:
        told.extend(map(len, proposals))
        chosen(lead, proposals)

    def fixed(*args: object) -> CostTable:
        measured(*args)  # type: ignore[arg-type]
        told.clear()
        return FLAT

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("deskside.runtime.build.measured", fixed)
    monkeypatch.setattr(Led, "chosen", noted)
    return told


def auto(ranks: int) -> EngineOptions:
    return options(ranks, **AUTO, measure_costs=True)


@pytest.mark.parametrize("seed", [3, None])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_text_of_widths_that_change(
    folder: Path, widths: list[int], ranks: int, seed: int | None
) -> None:
    """A request without a seed gives its text again on one rank, with the seed that it got."""
    sampling = SamplingParams(temperature=0.8, seed=seed, max_tokens=24, ignore_eos=True)
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    found = led(
        folder,
        auto(ranks),
        lambda llm: (llm.generate(PROMPTS, sampling), llm.generate(PROMPTS, greedy)),
    )
    assert len(set(widths)) > 2, "a test of changing widths"
    with LLM.open(str(folder), auto(1)) as alone:
        for result, prompt in zip(found[0], PROMPTS, strict=True):
            (again,) = alone.generate([prompt], replace(sampling, seed=result.seed))
            assert again.token_ids == result.token_ids
        same = alone.generate(PROMPTS, greedy)
        assert [r.token_ids for r in same] == [r.token_ids for r in found[1]]


def test_requests_that_share_a_budget_are_the_leaders_on_every_rank(
    folder: Path, widths: list[int]
) -> None:
    """What one of them may propose depends on the others; ranks are told and hold the same."""
    held: list[dict[int, list[int]]] = []

    def follow(follower: Follower) -> None:
        store, own = follower._owners.tokens, {}
        release = store.release

        def noted(sequence: int) -> None:
            own[sequence] = list(store.known(sequence))  # type: ignore[arg-type]
            release(sequence)  # type: ignore[arg-type]

        store.release = noted  # type: ignore[assignment,method-assign]
        held.append(own)
        follower.run()

    def body(llm: LLM) -> dict[int, list[int]]:
        scheduler, engine = llm._runtime.scheduler, llm._runtime.engine
        told: dict[int, list[int]] = {}
        for prompt in PROMPTS:
            ids = llm.tokenizer.prompt(prompt)
            params = SamplingParams(temperature=1, max_tokens=20, ignore_eos=True)
            sequence, _ = scheduler.submit(Request(tuple(ids), params))
            told[sequence] = list(ids)
        while not scheduler.idle:
            output = engine.step(scheduler.plan_step())
            scheduler.learn(output)
            for sequence, emission in output.emissions.items():
                assert emission.finish in (None, FinishReason.LENGTH)
                told[sequence] += emission.tokens
        llm.generate(["x"], SamplingParams(temperature=0, max_tokens=1))  # lets the others go
        return told

    told = led(folder, auto(2), body, Ranks(follow=follow))
    assert len(set(widths)) > 2, "a test of changing widths"
    (own,) = held
    assert {sequence: own[sequence] for sequence in told} == told
