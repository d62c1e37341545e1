"""Ends of every kind at every place of a block of accepted proposals: a reader sees no difference.

The engine runs in this process, with the scripted target and a drafter that is always right, or
wrong at one place. Everything is compared with the same request without proposals.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from deskside.config.engine import EngineOptions
from deskside.core import Request, SamplingParams
from deskside.llm import LLM, Result
from deskside.text.tokenizer import Tokenizer
from tests.server.double import Act, Drafter, scripted

OPTIONS = EngineOptions(kv_tokens=2048, max_running=4, threads=1)
WIDTH = 5
PLACES = range(WIDTH + 1)


@pytest.fixture(scope="module")
def alone() -> LLM:
    return LLM(scripted(OPTIONS))


def drafting(wrong: Callable[[int], bool] = lambda index: False) -> LLM:
    return LLM(scripted(OPTIONS, WIDTH, wrong))


def run(llm: LLM, prompt: list[int], params: SamplingParams) -> Result:
    return llm.generate([prompt], params)[0]


def same(llm: LLM, alone: LLM, prompt: list[int], **options: object) -> Result:
    """Run both, compare everything that a client sees, and return it."""
    params = SamplingParams(temperature=0, seed=1, **{"max_tokens": 40, **options})
    found, want = run(llm, prompt, params), run(alone, prompt, params)
    for field in ("text", "token_ids", "finish", "prompt_tokens"):
        assert getattr(found, field) == getattr(want, field), field
    assert found.acceptance.accepted <= len(found.token_ids)
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("wrong", [None, *PLACES])
def test_the_end_token(alone: LLM, place: int, wrong: int | None) -> None:
    llm = drafting(lambda index: index == wrong)
    found = same(llm, alone, [0, *range(300, 301 + place)])
    assert len(found.token_ids) == place + 2
    assert found.finish == "stop"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("end", ["stop_token_ids", "max_tokens", "min_tokens"])
def test_other_ends(alone: LLM, place: int, end: str) -> None:
    prompt = [0, *range(300, 312)]
    options: dict[str, object] = {
        "stop_token_ids": {"stop_token_ids": (301 + place,)},
        "max_tokens": {"max_tokens": 1 + place},
        "min_tokens": {"min_tokens": 13 + place, "max_tokens": 14 + place},
    }[end]
    found = same(drafting(), alone, prompt, **options)
    want = {"stop_token_ids": 2 + place, "max_tokens": 1 + place, "min_tokens": 14 + place}[end]
    assert len(found.token_ids) == want


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stop", ["turn w", "width", "th *", "t"])
def test_stop_strings_over_any_tokens(alone: LLM, place: int, stop: str) -> None:
    llm = drafting()
    words = llm.tokenizer.encode("return width * height of it")
    prompt = [0, *[260] * place, *words]
    found = same(llm, alone, prompt, stop=(stop,))
    assert stop not in found.text
    last = llm.tokenizer.decode(found.token_ids)
    assert stop in last
    assert stop not in llm.tokenizer.decode(found.token_ids[:-1])  # that token completed it


@pytest.mark.parametrize("limit", range(1, 12))
def test_characters_over_several_tokens(alone: LLM, limit: int) -> None:
    """Whatever ends in the midst of a character, the text has no half of it but at the end."""
    text = "aé한👩‍👩‍👧z"
    llm = drafting(lambda index: index % 4 == 3)
    ids = [0, *_bytewise(llm.tokenizer, text)]
    found = same(llm, alone, ids, max_tokens=limit)
    assert text.startswith(found.text.rstrip("\ufffd"))
    assert found.text.count("\ufffd") <= 1


def _bytewise(tokenizer: Tokenizer, text: str) -> list[int]:
    singles = {tokenizer.token_bytes(token): token for token in range(3, 259)}
    return [singles[bytes([byte])] for byte in text.encode()]


def test_penalties_and_biases_at_every_place(alone: LLM) -> None:
    for options in (
        {"repetition_penalty": 1.3},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 1.5},
        {"frequency_penalty": -2.0},
        {"logit_bias": ((701, 1.5),)},
    ):
        for wrong in PLACES:
            llm = drafting(lambda index, wrong=wrong: index % 6 == wrong)
            same(llm, alone, [0, *[700] * 12], **options)


def test_a_sum_over_steps_is_what_was_counted() -> None:
    llm = drafting()
    drafter = _drafter(llm)
    found = run(llm, [0, *range(300, 308)], SamplingParams(temperature=0, max_tokens=40))
    steps = [accepted for _, accepted in drafter.learned]
    assert sum(steps) == found.acceptance.accepted
    assert len(found.token_ids) == 9


def _drafter(llm: LLM) -> Drafter:
    speculation = llm._runtime.engine._speculation
    assert isinstance(speculation, Drafter)
    return speculation


def test_a_fault_costs_one_request_and_nothing_else() -> None:
    runtime = scripted(OPTIONS, WIDTH)
    llm = LLM(runtime)
    want = run(llm, [0, *range(300, 330)], SamplingParams(temperature=0))
    free = runtime.engine.free
    good = Request((0, *range(300, 330)), SamplingParams(temperature=0, seed=1))
    sequence, _ = runtime.scheduler.submit(good)
    bad = replace(good, prompt=(Act.NAN, 7, *range(300, 330)))
    lost, _ = runtime.scheduler.submit(bad)
    tokens: list[int] = []
    faults: list[str | None] = []
    while not runtime.scheduler.idle:
        output = runtime.engine.step(runtime.scheduler.plan_step())
        runtime.scheduler.learn(output)
        tokens += output.emissions[sequence].tokens if sequence in output.emissions else ()
        if lost in output.emissions and output.emissions[lost].finish is not None:
            faults.append(output.emissions[lost].fault)
    assert tuple(tokens) == want.token_ids
    assert len(faults) == 1
    assert faults[0] is not None
    assert faults[0].startswith("NanLogitsError")
    assert runtime.engine.free == free
