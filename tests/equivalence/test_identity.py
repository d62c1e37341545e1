"""Greedy text with speculation is greedy text without it, byte for byte.

Every accept mask at every place of the page, of the window and of both compression ratios, every
width, the controller made to alternate. The short half runs always; the whole, of 4,096 tokens on
a random miniature and on the checkpoint that ships, is marked slow.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from deskside.core import Pause, Request, SamplingParams
from deskside.engine.live import Live
from deskside.engine.speculation import Speculator
from deskside.engine.widths import WidthChooser, fixed, rule
from deskside.llm import LLM
from deskside.speculate.width import WidthRule
from tests.equivalence.test_engine import alone, opened, params
from tests.scripted import Scripted, scripted

BLOCK = 5
MASKS = range(2**BLOCK)
PROMPT = "x" * 100
SHORT, WHOLE = 150, 4096
PAGE = 128
ALTERNATING = {
    "fallback_rule": "fixed",
    "fallback_threshold": 1.0,
    "fallback_min_drafted": 3,
    "fallback_steps": 2,
}


CODE = """class Stack:
    def __init__(self, items=None):
        self._items = list(items or [])

    def push(self, item):
        self._items.append(item)
"""
PENALTY = 0.5
"""Keeps the trained model from repeating itself, where a mistaken row could go unseen."""


def greedy(tokens: int, seed: int = 0, penalty: float = 0.0) -> SamplingParams:
    return params(temperature=0, max_tokens=tokens, seed=seed, frequency_penalty=penalty)


def rejected_at(mask: int) -> int:
    """Return the place of the first wrong proposal: how many are accepted."""
    return next((k for k in range(BLOCK) if mask >> k & 1), BLOCK)


@dataclass(frozen=True)
class Course:
    """A mask, and how many plain steps come before its first block.

    A block moves the text on by its accepted proposals and one, so that many courses as that number
    start a block of the mask at every position.
    """

    mask: int
    delay: int

    @property
    def seed(self) -> int:
        return self.mask * (BLOCK + 1) + self.delay

    @staticmethod
    def of(seed: int) -> "Course":
        return Course(*divmod(seed, BLOCK + 1))


COURSES = [Course(mask, delay) for mask in MASKS for delay in range(rejected_at(mask) + 1)]


def masked(truth: tuple[int, ...], vocab: int) -> Scripted:
    def width(seed: int, place: int) -> int:
        return BLOCK if place > Course.of(seed).delay else 0

    def wrong(seed: int, _place: int, k: int) -> bool:
        return bool(Course.of(seed).mask >> k & 1)

    return Scripted(truth, vocab, width, wrong)


def run_masks(llm: LLM, prompt: str, tokens: int) -> None:
    """Run every course, many together, and say that every mask met every position."""
    expected = alone(llm, prompt, greedy(tokens))
    script = masked(expected.token_ids, llm.plan.spec.vocab)
    samplings = [greedy(tokens, course.seed) for course in COURSES]
    with scripted(llm, script):
        for course, run in zip(COURSES, together(llm, prompt, samplings), strict=True):
            assert run.tokens == expected.token_ids, course
    whole = [block for block in script.blocks if block.width == BLOCK]
    for block in whole:
        assert block.accepted == rejected_at(Course.of(block.seed).mask)
    first = expected.prompt_tokens + BLOCK + 1
    seen = {(Course.of(block.seed).mask, block.start) for block in whole}
    last = expected.prompt_tokens + tokens - 2 * BLOCK
    missing = {(m, start) for m in MASKS for start in range(first, last)} - seen
    assert not missing
    assert last - first >= PAGE, "all borders: pages and windows of 128, ratios of 4 and 128"


@dataclass
class Run:
    """What one of several requests that ran at the same time brought."""

    tokens: tuple[int, ...] = ()
    verified: int = 0
    pauses: Counter[Pause] = field(default_factory=Counter)


def together(llm: LLM, prompt: str, samplings: Iterable[SamplingParams]) -> list[Run]:
    """Run requests of one prompt at the same time; their seeds say which is which."""
    scheduler, engine = llm._runtime.scheduler, llm._runtime.engine
    ids = tuple(llm.tokenizer.prompt(prompt))
    found = {scheduler.submit(Request(ids, sampling))[0]: Run() for sampling in samplings}
    while not scheduler.idle:
        output = engine.step(scheduler.plan_step())
        scheduler.learn(output)
        for sequence, emission in output.emissions.items():
            run = found[sequence]
            run.tokens += emission.tokens
            run.verified += emission.verified
            run.pauses[emission.pause] += emission.pause is not None
    return list(found.values())


def test_courses_start_a_block_of_every_mask_everywhere() -> None:
    assert len(COURSES) == 63
    assert {Course.of(course.seed) for course in COURSES} == set(COURSES)


def for_masks(model: str, tokens: int) -> LLM:
    pages = -(-(len(PROMPT) + tokens + 1) // PAGE)
    return opened(model, speculation="off", max_running=64, kv_tokens=64 * pages * PAGE)


def test_every_mask_at_every_place_of_a_page(drafting: Path) -> None:
    run_masks(for_masks(str(drafting), SHORT), PROMPT, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_mask_at_every_place_of_the_whole_text(drafting: Path) -> None:
    run_masks(for_masks(str(drafting), WHOLE), PROMPT, WHOLE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_mask_on_the_checkpoint_that_ships() -> None:
    run_masks(for_masks("deskside-mini", SHORT), CODE, SHORT)


@pytest.fixture(scope="module", params=["random", "deskside-mini"])
def model(request: pytest.FixtureRequest, drafting: Path) -> str:
    return str(drafting) if request.param == "random" else request.param


def long_sampling(model: str, seed: int = 0) -> SamplingParams:
    return greedy(WHOLE, seed, PENALTY if model == "deskside-mini" else 0.0)


def prompt_of(model: str) -> str:
    return CODE if model == "deskside-mini" else PROMPT


def for_long_texts(model: str, requests: int, **options: object) -> LLM:
    room = {"max_running": requests, "kv_tokens": requests * (WHOLE + 2 * PAGE)}
    return opened(model, **room, **options)


@pytest.fixture(scope="module")
def whole(model: str) -> tuple[int, ...]:
    """The text of the target alone."""
    llm = for_long_texts(model, 1, speculation="off")
    tokens = alone(llm, prompt_of(model), long_sampling(model)).token_ids
    assert len(set(tokens)) > 200, "a text of few tokens would hide a mistaken row"
    return tokens


def run_rules(llm: LLM, model: str, rules: Mapping[int, WidthChooser]) -> list[Run]:
    """Run one request for each rule, all at the same time."""

    def chosen(self: Speculator, live: Live, record: Any, confidences: Sequence[float]) -> int:
        costs = self.stored.widths(len(confidences))
        return rules[live.seed](confidences, record.averages.values(), costs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Speculator, "_alone", chosen)
        return together(llm, prompt_of(model), [long_sampling(model, seed) for seed in rules])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_width_over_the_whole_text(model: str, whole: tuple[int, ...]) -> None:
    llm = for_long_texts(model, BLOCK + 1, fallback=False)
    runs = run_rules(llm, model, {width: fixed(width) for width in range(BLOCK + 1)})
    for width, run in enumerate(runs):
        assert run.tokens == whole, width
        assert bool(run.verified) == bool(width)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_alternating_controller_over_the_whole_text(model: str, whole: tuple[int, ...]) -> None:
    rules = [WidthRule.STOP, WidthRule.EXPECT, WidthRule.ARGMAX]
    llm = for_long_texts(model, len(rules), **ALTERNATING)
    runs = run_rules(llm, model, {seed: rule(name) for seed, name in enumerate(rules)})
    for name, run in zip(rules, runs, strict=True):
        assert run.tokens == whole, name
        assert min(run.pauses[Pause.TRIP], run.pauses[Pause.PROBE]) > WHOLE // 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_changing_masks_over_the_whole_text(model: str, whole: tuple[int, ...]) -> None:
    widths = range(1, 9)
    llm = for_long_texts(model, len(widths), speculation="off")
    draw = Random(1)
    script = Scripted(
        whole,
        llm.plan.spec.vocab,
        lambda width, _place: draw.randint(0, width),
        lambda _width, _place, _k: draw.random() < 0.25,
    )
    samplings = [long_sampling(model, width) for width in widths]
    with scripted(llm, script):
        for run in together(llm, prompt_of(model), samplings):
            assert run.tokens == whole
    for width in widths:
        found = {block.accepted for block in script.blocks if block.seed == width}
        assert found == {*range(width + 1)}
