"""What a prompt takes up from earlier ones changes no bit of what follows, for any shared length.

Text, log probabilities and the count of accepted proposals are those of a model that computes every
prompt whole: the first depend on all state of the target, the last on the drafter's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from deskside.core import FinishReason, Request, SamplingParams
from deskside.llm import LLM, Result
from deskside.state import prefixes
from tests.equivalence.test_engine import opened, params

PAGE = 128
PAGES = 3
NEAR = sorted(
    {n + d for n in range(0, PAGES * PAGE + 1, PAGE) for d in (-2, -1, 0, 1, 2)} - {-2, -1}
)
EVERY = range(PAGES * PAGE + 3)
ROOM = {"kv_tokens": 8192, "max_running": 8}
DRAFTING = {"speculation": 3, "fallback": False}


def drawn(count: int, seed: int, vocab: int = 500) -> list[int]:
    return Random(seed).choices(range(3, vocab), k=count)


def told(result: Result) -> tuple[object, ...]:
    """Return all that a run says about bits."""
    return result.token_ids, result.finish, result.logprobs, result.acceptance


def greedy(tokens: int = 5, **options: object) -> SamplingParams:
    return params(temperature=0, max_tokens=tokens, logprobs=20, **options)


def alone(llm: LLM, prompt: Sequence[int], sampling: SamplingParams | None = None) -> Result:
    return llm.generate([prompt], sampling or greedy())[0]


@contextmanager
def two(model: Path | str, **options: object) -> Iterator[tuple[LLM, LLM]]:
    """Open a model that reuses prefixes, and one that does not."""
    options = {**ROOM, **DRAFTING, **options}
    with opened(model, **options) as warm, opened(model, prefix_cache="off", **options) as cold:
        yield warm, cold


@pytest.fixture(scope="module", params=["off", 3], ids=["plain", "drafting"])
def pair(request: pytest.FixtureRequest, drafting: Path) -> Iterator[tuple[LLM, LLM]]:
    with two(drafting, speculation=request.param) as models:
        yield models


def run_lengths(
    warm: LLM,
    cold: LLM,
    lengths: Sequence[int],
    vocab: int = 500,
    base: Sequence[int] | None = None,
) -> None:
    """Let prompts share these many tokens with one that was answered before."""
    if base is None:
        base = drawn(PAGES * PAGE + 60, seed=1, vocab=vocab)
        alone(warm, base)
    prompts = [[*base[:shared], *drawn(9, seed=shared + 2, vocab=vocab)] for shared in lengths]
    for shared, prompt in zip(lengths, prompts, strict=True):
        alone(warm, prompt)  # leaves a snapshot where it leaves the first one
        again = alone(warm, prompt)
        assert again.cached_tokens == (len(prompt) - 1) // PAGE * PAGE, shared
        expected = alone(cold, prompt)
        assert told(again) == told(expected), shared
        assert expected.cached_tokens == 0


def test_shared_lengths_around_page_borders(pair: tuple[LLM, LLM]) -> None:
    run_lengths(*pair, NEAR)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_shared_length(pair: tuple[LLM, LLM]) -> None:
    run_lengths(*pair, EVERY)


def run_answer(drafting: Path, numerics: str, lengths: Sequence[int]) -> None:
    """Share prompts that end within an answer: its rows were generated."""
    with two(drafting, numerics=numerics) as (warm, cold):
        prompt = drawn(60, seed=30)
        answer = alone(warm, prompt, greedy(PAGES * PAGE)).token_ids
        run_lengths(warm, cold, lengths, base=[*prompt, *answer])


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_shared_lengths_within_an_answer(drafting: Path, numerics: str) -> None:
    run_answer(drafting, numerics, [n for n in NEAR if n % PAGE in (0, 1, PAGE - 1)])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_every_shared_length_within_an_answer(drafting: Path, numerics: str) -> None:
    run_answer(drafting, numerics, EVERY)


@pytest.mark.parametrize("speculation", ["off", 5])
def test_shared_lengths_on_the_checkpoint_that_ships(speculation: object) -> None:
    with two("deskside-mini", speculation=speculation) as models:
        run_lengths(*models, [PAGE - 1, PAGE, 2 * PAGE + 1], vocab=2000)


def test_a_prompt_that_leaves_another_early_is_the_third_to_gain(pair: tuple[LLM, LLM]) -> None:
    warm, cold = pair
    base, shared = drawn(500, seed=40), 2 * PAGE + 7
    prompts = [base] + [base[:shared] + drawn(200, seed) for seed in (41, 42, 43)]
    found = [alone(warm, prompt) for prompt in prompts]
    assert [result.cached_tokens for result in found] == [0, 0, 2 * PAGE, 2 * PAGE]
    assert [told(r) for r in found] == [told(alone(cold, prompt)) for prompt in prompts]


KINDS = [
    ({}, True, (100, 60, 10)),
    ({"numerics": "exact"}, True, (100, 10)),
    ({"numerics": "reference"}, True, (32, 3)),
    ({"kernels": "plain"}, False, (32, 3)),
    ({"kernels": "plain", "numerics": "exact"}, True, (32, 3)),
    ({"backend": "fetch", "expert_slots": 64}, False, (100, 10)),
]


@pytest.mark.parametrize(("options", "whole", "answers"), KINDS, ids=str)
def test_turns_go_on_from_answers_where_both_kinds_of_rows_are_equal(
    drafting: Path, options: dict[str, object], whole: bool, answers: Sequence[int]
) -> None:
    with two(drafting, **options) as (warm, cold):
        said = drawn(PAGE - 30, seed=7)
        free = warm._runtime.engine.free
        for turn, answer in enumerate(answers):
            sampling = greedy(answer)
            result = alone(warm, said, sampling)
            assert told(result) == told(alone(cold, said, sampling)), turn
            computed = len(said) + len(result.token_ids) - 1
            known = computed if whole else len(said)
            said = [*said, *result.token_ids, *drawn(30, seed=turn)]
            found = warm._runtime.engine._owners.prefixes.resumable(said)
            assert found == known // PAGE * PAGE
        assert warm._runtime.engine.free == free


def ends(llm: LLM, prompt: list[int]) -> Iterator[list[int]]:
    """Yield what was said after turns that end in every way."""
    free = alone(llm, prompt, greedy(140)).token_ids
    stop = next(t for t in range(120, 140) if free[t] not in free[:t])
    stopped = alone(llm, prompt, greedy(140, stop_token_ids=(free[stop],)))
    assert (stopped.finish, len(stopped.token_ids)) == (FinishReason.STOP, stop + 1)
    yield [*prompt, *stopped.token_ids]
    yield [*prompt, *free]
    stream, seen = llm.stream(prompt, greedy(140)), []
    while len(seen) < 130:
        seen += next(stream).tokens
    stream.close()
    yield [*prompt, *seen]


def test_turns_that_ended_in_any_way(pair: tuple[LLM, LLM]) -> None:
    warm, cold = pair
    for said in ends(warm, drawn(100, seed=50)):
        prompt = [*said, *drawn(20, seed=51)]
        result = alone(warm, prompt)
        assert result.cached_tokens == PAGE
        assert told(result) == told(alone(cold, prompt))


@pytest.mark.parametrize("chunk", [PAGE, 100, 300])
def test_an_aborted_prompt_leaves_whole_pages(
    drafting: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "STRIDE", PAGE)
    prompt, computed = drawn(2000, seed=60), 0
    with two(drafting, prefill_chunk=chunk) as (warm, cold):
        scheduler, engine = warm._runtime.scheduler, warm._runtime.engine
        free = engine.free
        for steps in (1, 2, 3):
            sequence, _ = scheduler.submit(Request(tuple(prompt), greedy()))
            for _ in range(steps):
                scheduler.learn(engine.step(scheduler.plan_step()))
            warm._leave([sequence])
            assert engine.free == free
            computed = computed // PAGE * PAGE + steps * chunk
        result = alone(warm, prompt)
        assert result.cached_tokens == computed // PAGE * PAGE
        assert told(result) == told(alone(cold, prompt))


def test_equal_prompts_at_the_same_time_share_their_pages(pair: tuple[LLM, LLM]) -> None:
    warm, cold = pair
    engine = warm._runtime.engine
    free, prompt = engine.free, drawn(3 * PAGE + 50, seed=70)
    scheduler, request = warm._runtime.scheduler, Request(tuple(prompt), greedy(30))
    running = [scheduler.submit(request)[0] for _ in range(3)]
    scheduler.learn(engine.step(scheduler.plan_step()))
    tables = [engine._owners.pages.table(sequence) for sequence in running]
    assert tables[0][:3] == tables[1][:3] == tables[2][:3]
    assert len({table[3] for table in tables}) == len(tables)
    assert engine.free[0] == free[0] - 3 - len(tables)
    warm._leave(running)
    assert engine.free == free
    results = warm.generate([prompt] * 3, greedy())
    assert [told(r) for r in results] == [told(alone(cold, prompt))] * 3


def test_few_pages_and_snapshots_are_taken_back(drafting: Path) -> None:
    draw = Random(80)
    texts = [drawn(4 * PAGE, seed) for seed in (81, 82, 83)]
    with two(drafting, max_running=2, kv_tokens=10 * PAGE) as (warm, cold):
        free, hits = warm._runtime.engine.free, 0
        for turn in range(14):
            prompts = [
                draw.choice(texts)[: draw.randint(1, 4 * PAGE)] + drawn(draw.randint(1, 60), turn)
                for _ in range(3)
            ]
            found = warm.generate(prompts, greedy(8))
            assert [told(r) for r in found] == [told(r) for r in cold.generate(prompts, greedy(8))]
            assert warm._runtime.engine.free == free
            hits += sum(result.cached_tokens > 0 for result in found)
        assert hits > 3
        assert warm._runtime.engine._owners.prefixes._tree.evicted > 3


def test_a_prompt_that_is_asked_about_is_computed_whole(pair: tuple[LLM, LLM]) -> None:
    warm, cold = pair
    prompt = drawn(200, seed=90)
    alone(warm, prompt)
    sampling = greedy(4, prompt_logprobs=True)
    asked = alone(warm, prompt, sampling)
    assert asked.cached_tokens == 0
    assert asked.prompt_logprobs == alone(cold, prompt, sampling).prompt_logprobs


def test_who_would_fit_by_shared_pages_waits_and_is_not_refused(drafting: Path) -> None:
    """Each request sets its own pages aside, shared ones too: two of four where six are."""
    shared = drawn(2 * PAGE, seed=95)
    prompts = [shared + drawn(PAGE - 10, seed) for seed in (96, 97)]
    sampling = greedy(PAGE + 10)
    with two(drafting, kv_tokens=6 * PAGE, max_running=2) as (warm, cold):
        scheduler, engine = warm._runtime.scheduler, warm._runtime.engine
        alone(warm, [*shared, 5], greedy(1))
        sequences = [scheduler.submit(Request(tuple(one), sampling))[0] for one in prompts]
        scheduler.learn(engine.step(scheduler.plan_step()))
        assert (scheduler.running, scheduler.waiting) == (1, 1)
        assert engine.free[0] >= 2, "the other would find room"
        warm._leave(sequences)
        found = warm.generate(prompts, sampling)
        assert [told(one) for one in found] == [
            told(one) for one in cold.generate(prompts, sampling)
        ]
        assert all(one.cached_tokens == 2 * PAGE for one in found)
