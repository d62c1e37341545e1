"""Greedy text with speculation is greedy text without it, byte for byte.

Every accept mask at every place of the page, of the window and of both compression ratios, every
width, the controller made to alternate. The short half runs always; the whole, of 4,096 tokens on
a random miniature and on the checkpoint that ships, is marked slow.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from deskside.core import Request, SamplingParams
from deskside.llm import LLM, Result
from tests.equivalence.test_engine import VOCAB, alone, opened, params, write_tokenizer
from tests.miniature import write_miniature
from tests.scripted import Scripted, scripted

BLOCK = 5
MASKS = range(2**BLOCK)
PROMPT = "x" * 100
SHORT, WHOLE = 150, 4096
PAGE = 128
ALTERNATING = {"fallback_threshold": 1.0, "fallback_min_drafted": 3, "fallback_steps": 2}


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafting")
    write_miniature(folder, vocab=VOCAB, seed=4, drafter=True)
    write_tokenizer(folder)
    return folder


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
    with scripted(llm, script):
        for course, result in zip(COURSES, together(llm, prompt, tokens), strict=True):
            assert result == expected.token_ids, course
    whole = [block for block in script.blocks if block.width == BLOCK]
    for block in whole:
        assert block.accepted == rejected_at(Course.of(block.seed).mask)
    first = expected.prompt_tokens + BLOCK + 1
    seen = {(Course.of(block.seed).mask, block.start) for block in whole}
    last = expected.prompt_tokens + tokens - 2 * BLOCK
    missing = {(m, start) for m in MASKS for start in range(first, last)} - seen
    assert not missing
    assert last - first >= PAGE, "all borders: pages and windows of 128, ratios of 4 and 128"


def together(llm: LLM, prompt: str, tokens: int) -> Iterable[tuple[int, ...]]:
    """Run a request for every course at the same time; its seed says which one it is."""
    scheduler, engine = llm._runtime.scheduler, llm._runtime.engine
    ids = llm.tokenizer.prompt(prompt)
    found = {}
    for course in COURSES:
        sequence, _ = scheduler.submit(Request(tuple(ids), greedy(tokens, course.seed)))
        found[sequence] = []
    while not scheduler.idle:
        output = engine.step(scheduler.plan_step())
        scheduler.learn(output)
        for sequence, emission in output.emissions.items():
            found[sequence] += emission.tokens
    return [tuple(tokens) for tokens in found.values()]


def test_courses_start_a_block_of_every_mask_everywhere() -> None:
    assert len(COURSES) == 63
    assert {Course.of(course.seed) for course in COURSES} == set(COURSES)


def for_masks(model: str, tokens: int) -> LLM:
    pages = -(-(len(PROMPT) + tokens + 1) // PAGE)
    return opened(model, speculation="off", max_running=64, kv_tokens=64 * pages * PAGE)


def test_every_mask_at_every_place_of_a_page(folder: Path) -> None:
    run_masks(for_masks(str(folder), SHORT), PROMPT, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_mask_at_every_place_of_the_whole_text(folder: Path) -> None:
    run_masks(for_masks(str(folder), WHOLE), PROMPT, WHOLE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_mask_on_the_checkpoint_that_ships() -> None:
    run_masks(for_masks("deskside-mini", SHORT), CODE, SHORT)


@pytest.fixture(scope="module", params=["random", "deskside-mini"])
def model(request: pytest.FixtureRequest, folder: Path) -> str:
    return str(folder) if request.param == "random" else request.param


def long_text(llm: LLM, model: str) -> Result:
    if model == "deskside-mini":
        return alone(llm, CODE, greedy(WHOLE, penalty=PENALTY))
    return alone(llm, PROMPT, greedy(WHOLE))


@pytest.fixture(scope="module")
def whole(model: str) -> Result:
    """The text of the target alone."""
    result = long_text(opened(model, speculation="off", kv_tokens=2 * WHOLE), model)
    assert len(set(result.token_ids)) > 200, "a text of few tokens would hide a mistaken row"
    return result


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("width", range(BLOCK + 1))
def test_every_width_over_the_whole_text(model: str, whole: Result, width: int) -> None:
    llm = opened(model, speculation=width, fallback=False, kv_tokens=2 * WHOLE)
    result = long_text(llm, model)
    assert result.token_ids == whole.token_ids
    assert bool(result.acceptance.verified) == bool(width)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rule", ["stop", "expect", "argmax"])
def test_an_alternating_controller_over_the_whole_text(
    model: str, whole: Result, rule: str
) -> None:
    llm = opened(model, width_rule=rule, kv_tokens=2 * WHOLE, **ALTERNATING)
    result = long_text(llm, model)
    assert result.token_ids == whole.token_ids
    assert min(result.acceptance.trips, result.acceptance.probes) > WHOLE // 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("width", range(1, 9))
def test_changing_masks_over_the_whole_text(model: str, whole: Result, width: int) -> None:
    llm = opened(model, speculation="off", kv_tokens=2 * WHOLE)
    draw = Random(width)
    script = Scripted(
        whole.token_ids,
        llm.plan.spec.vocab,
        lambda _seed, _place: draw.randint(0, width),
        lambda _seed, _place, _k: draw.random() < 0.25,
    )
    with scripted(llm, script):
        assert long_text(llm, model).token_ids == whole.token_ids
    assert {block.accepted for block in script.blocks} == {*range(width + 1)}
