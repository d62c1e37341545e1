"""The scheduler: order, budgets, admission by pages, and what can never run."""

from collections.abc import Sequence

import pytest

from deskside.core import Emission, FinishReason, Request, SamplingParams, StepOutput, StepPlan
from deskside.errors import ContextLengthError, InputError
from deskside.scheduler.admission import Admissions
from deskside.scheduler.scheduler import Scheduler, StepLimits


def make(pages: int = 10, places: int = 4, chunk: int = 100, step: int = 20) -> Scheduler:
    return Scheduler(Admissions(pages, places, vocab=50), StepLimits(chunk, step))


def request(prompt: int, output: int = 10) -> Request:
    return Request((1,) * prompt, SamplingParams(max_tokens=output, seed=1))


def run(scheduler: Scheduler, plan: StepPlan, ending: Sequence[int] = ()) -> None:
    emissions = {}
    for span in plan.spans:
        finish = FinishReason.STOP if span.sequence in ending else None
        emissions[span.sequence] = Emission(span.rows, (7,) if span.samples else (), finish)
    scheduler.learn(StepOutput(plan.step, emissions))


def shapes(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    return [(s.sequence, s.start, s.rows, s.samples) for s in plan.spans]


def test_a_prompt_goes_in_chunks_and_only_the_last_samples() -> None:
    scheduler = make(chunk=100)
    scheduler.submit(request(250))
    seen = []
    for _ in range(4):
        plan = scheduler.plan_step()
        seen += shapes(plan)
        run(scheduler, plan)
    assert seen == [(0, 0, 100, False), (0, 100, 100, False), (0, 200, 50, True), (0, 250, 1, True)]


def test_streams_come_first_and_keep_the_step_short() -> None:
    scheduler = make(chunk=100, step=20)
    scheduler.submit(request(5))
    run(scheduler, scheduler.plan_step())
    scheduler.submit(request(60))
    assert shapes(scheduler.plan_step()) == [(0, 5, 1, True), (1, 0, 19, False)]


def test_short_prompts_share_a_step() -> None:
    scheduler = make(chunk=100)
    for size in (30, 40, 50):
        scheduler.submit(request(size))
    assert shapes(scheduler.plan_step()) == [(0, 0, 30, True), (1, 0, 40, True), (2, 0, 30, False)]


def test_pages_are_counted_with_the_output_and_nobody_overtakes() -> None:
    scheduler = make(pages=3)
    scheduler.submit(request(120, output=100))  # 2 pages
    scheduler.submit(request(129, output=10))  # 2 pages: waits
    scheduler.submit(request(5))  # 1 page: would fit, but came later
    plan = scheduler.plan_step()
    assert [a.sequence for a in plan.admissions] == [0]
    run(scheduler, plan, ending=[0])
    assert [a.sequence for a in scheduler.plan_step().admissions] == [1, 2]


def test_places_are_limited() -> None:
    scheduler = make(places=2)
    for _ in range(3):
        scheduler.submit(request(5))
    assert len(scheduler.plan_step().admissions) == 2


def test_abort_of_waiting_and_running() -> None:
    scheduler = make(places=1)
    scheduler.submit(request(5))
    scheduler.submit(request(5))
    run(scheduler, scheduler.plan_step())
    scheduler.abort(scheduler.submit(request(5))[0])
    scheduler.abort(0)  # type: ignore[arg-type]
    scheduler.abort(0)  # type: ignore[arg-type]
    plan = scheduler.plan_step()
    assert (plan.aborts, [a.sequence for a in plan.admissions]) == ((0,), [1])
    run(scheduler, plan, ending=[1])
    assert scheduler.idle


def test_a_request_without_seed_gets_one() -> None:
    scheduler = make()
    sequence, seed = scheduler.submit(Request((1,), SamplingParams()))
    assert 0 <= seed < 2**63
    (admission,) = scheduler.plan_step().admissions
    assert (admission.sequence, admission.request.params.seed) == (sequence, seed)


@pytest.mark.parametrize(
    ("refused", "word"),
    [
        (Request(()), "empty"),
        (Request((50,)), "vocabulary"),
        (Request((-1,)), "vocabulary"),
        (request(1271), "--kv-tokens"),
        (Request((1,), SamplingParams(stop_token_ids=(50,))), "vocabulary"),
        (Request((1,), SamplingParams(logit_bias=((50, 1.0),))), "vocabulary"),
    ],
)
def test_what_can_never_run_is_refused_at_once(refused: Request, word: str) -> None:
    with pytest.raises(InputError, match=word):
        make(pages=10).submit(refused)


def test_a_step_leaves_room_for_the_proposals_of_streams() -> None:
    limits = StepLimits(prefill_chunk=100, step_tokens=20, proposals=5)
    scheduler = Scheduler(Admissions(10, 4, vocab=50), limits)
    scheduler.submit(request(5))
    run(scheduler, scheduler.plan_step())
    scheduler.submit(request(60))
    assert shapes(scheduler.plan_step()) == [(0, 5, 1, True), (1, 0, 14, False)]


def test_what_is_too_long_says_so_by_its_type() -> None:
    admissions = Admissions(pages=4, places=4, vocab=50, positions=300)
    admissions.check(request(290, output=10))
    with pytest.raises(ContextLengthError, match=r"291 \+ 10 = 301 tokens, the model reads 300"):
        admissions.check(request(291, output=10))
    with pytest.raises(ContextLengthError, match=r"503 \+ 10 = 513 tokens, have 512.*--kv-tokens"):
        admissions.check(request(503, output=10))
    with pytest.raises(InputError) as empty:
        admissions.check(request(0))
    assert not isinstance(empty.value, ContextLengthError)


def test_counts_follow_who_waits_and_runs() -> None:
    scheduler = make(places=1)
    first, _ = scheduler.submit(request(5))
    second, _ = scheduler.submit(request(5))
    assert (scheduler.running, scheduler.waiting) == (0, 2)
    run(scheduler, scheduler.plan_step())
    assert (scheduler.running, scheduler.waiting) == (1, 1)
    scheduler.abort(second)
    assert (scheduler.running, scheduler.waiting) == (1, 0)
    scheduler.abort(first)
    assert scheduler.running == 0
    assert not scheduler.idle, "the engine has still to hear of it"
    assert scheduler.plan_step().aborts == (first,)
    assert scheduler.idle


def test_forced_tokens_are_rows_of_the_next_span() -> None:
    scheduler = make()
    scheduler.submit(request(5))
    run(scheduler, scheduler.plan_step())
    plan = scheduler.plan_step()
    forced = Emission(kept=1, tokens=(7, 8, 9), forced=2)
    scheduler.learn(StepOutput(plan.step, {plan.spans[0].sequence: forced}))
    plan = scheduler.plan_step()
    assert shapes(plan) == [(0, 6, 3, True)]
    run(scheduler, plan)
    assert shapes(scheduler.plan_step()) == [(0, 9, 1, True)]


def test_a_prompt_begins_behind_what_was_computed_before() -> None:
    known = {(1,) * 250: 200, (1,) * 90: 0}
    scheduler = Scheduler(Admissions(10, 4, vocab=50), StepLimits(100, 20), lambda p: known[p])
    scheduler.submit(request(250))
    scheduler.submit(request(90))
    plan = scheduler.plan_step()
    assert [(a.sequence, a.reused, a.pages) for a in plan.admissions] == [(0, 200, 3), (1, 0, 1)]
    assert shapes(plan) == [(0, 200, 50, True), (1, 0, 50, False)]
    run(scheduler, plan)
    assert shapes(scheduler.plan_step()) == [(0, 250, 1, True), (1, 50, 19, False)]


def test_a_request_that_asks_about_its_prompt_begins_at_its_start() -> None:
    scheduler = Scheduler(Admissions(10, 4, vocab=50), StepLimits(100, 20), lambda _: 128)
    params = SamplingParams(max_tokens=1, seed=1, prompt_logprobs=True)
    scheduler.submit(Request((1,) * 140, params))
    plan = scheduler.plan_step()
    assert [admission.reused for admission in plan.admissions] == [0]
    assert shapes(plan) == [(0, 0, 100, False)]
