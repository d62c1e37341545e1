"""What a request may ask for gives with speculation what it gives without.

Log probabilities are equal to the last bit, stop strings may end in any place of a block, options
that depend on the tokens before count every accepted proposal, and a seed names one text.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from deskside.checkpoint.index import Checkpoint
from deskside.core import FinishReason, SamplingParams
from deskside.errors import InputError
from deskside.kernels import native
from deskside.layout.kv import KvFormat
from deskside.llm import LLM, Result
from deskside.model.weights import load
from deskside.ops.opset import OpSet
from deskside.speculate.costs import CostTable
from tests.equivalence.test_engine import VOCAB, alone, opened, params, same
from tests.rig import Rig
from tests.scripted import Scripted, scripted, speculator

PROMPT = "x" * 121
OUTPUT = 60
NEVER = CostTable.measured(1.0, {1: 1.0, 64: 6400.0})
ALWAYS = CostTable.measured(0.0, {1: 1.0, 64: 1.0})


@pytest.fixture(scope="module")
def auto(drafting: Path) -> LLM:
    return opened(drafting, fallback=False)


def partly_right(llm: LLM, truth: Sequence[int], sampling: SamplingParams) -> Result:
    """Run with blocks of five that are wrong in every seventh place."""
    script = Scripted(
        truth, VOCAB, lambda _seed, _place: 5, lambda _seed, place, _k: place % 7 == 5
    )
    with scripted(llm, script):
        result = alone(llm, PROMPT, sampling)
    assert script.accepted > len(result.token_ids) // 4
    return result


@pytest.mark.parametrize("top", [0, 5])
def test_log_probabilities_are_those_without_speculation(
    plain: LLM, auto: LLM, drafting: Path, top: int
) -> None:
    sampling = params(temperature=0, max_tokens=OUTPUT, logprobs=top)
    expected = alone(plain, PROMPT, sampling)
    assert len(expected.logprobs) == OUTPUT
    for token, one in zip(expected.token_ids, expected.logprobs, strict=True):
        assert len(one.top) == top
        assert all(a[1] >= b[1] for a, b in pairwise(one.top))
        assert not top or one.top[0] == (token, one.logprob), "greedy takes the likeliest"
    for found in (
        partly_right(plain, expected.token_ids, sampling),
        alone(auto, PROMPT, sampling),
        alone(opened(drafting, speculation=5, fallback=False), PROMPT, sampling),
    ):
        assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)


def test_log_probabilities_of_sampled_tokens_are_the_targets_own(drafting: Path) -> None:
    """Before temperature, cuts and penalties, whatever was proposed; by a forward of the text."""
    llm = opened(drafting, speculation=5, fallback=False, numerics="exact")
    options = {"temperature": 1.3, "top_p": 0.9, "presence_penalty": 1.0, "logprobs": 4}
    results = llm.generate([PROMPT, "y"], params(**options, max_tokens=OUTPUT))
    assert sum(result.acceptance.accepted for result in results) > 0
    checkpoint = Checkpoint.open(drafting)
    weights, spec = load(checkpoint), llm.plan.spec
    ops = OpSet().replaced(native.bodies())
    rig = Rig(weights, spec, KvFormat.FP8, ops, exact=True)
    for prompt, result in zip([PROMPT, "y"], results, strict=True):
        ids = [*llm.tokenizer.prompt(prompt), *result.token_ids]
        rows = rig.chunked(ids, [len(ids)])[result.prompt_tokens - 1 : -1]
        for token, one, logits in zip(result.token_ids, result.logprobs, rows, strict=True):
            numbers = torch.log_softmax(logits.double(), 0)
            assert one.logprob == float(numbers[token])
            values, tokens = numbers.sort(descending=True, stable=True)
            likeliest = zip(tokens[:4].tolist(), values[:4].tolist(), strict=True)
            assert one.top == tuple(likeliest)


def test_log_probabilities_end_where_the_text_ends(plain: LLM) -> None:
    truth = alone(plain, PROMPT, params(temperature=0, max_tokens=OUTPUT)).token_ids
    place = next(i for i in range(9, 40) if truth[i] not in truth[:i])
    sampling = params(temperature=0, max_tokens=OUTPUT, logprobs=2, stop_token_ids=(truth[place],))
    result = partly_right(plain, truth, sampling)
    assert len(result.logprobs) == len(result.token_ids) == place + 1


def spanning(llm: LLM, truth: Sequence[int], place: int) -> str:
    """Return the text from the middle of the token before a place to its own middle."""
    before, own = (llm.tokenizer.text_bytes(truth[i]) for i in (place - 1, place))
    return (before[len(before) // 2 :] + own[: (len(own) + 1) // 2]).decode()


@pytest.mark.parametrize("offset", range(6))
def test_a_stop_string_across_tokens_at_any_place_of_a_block(plain: LLM, offset: int) -> None:
    sampling = params(temperature=0, max_tokens=150)
    truth = alone(plain, PROMPT, sampling).token_ids
    readable = [all(b < 128 for b in plain.tokenizer.text_bytes(token)) for token in truth]
    place = next(
        i for i in range(12 + offset, 150, 6) if readable[i - 1] and readable[i] and truth[i] > 2
    )
    stopping = replace(sampling, stop=(spanning(plain, truth, place),), logprobs=0)
    expected = alone(plain, PROMPT, stopping)
    assert expected.finish is FinishReason.STOP
    assert len(expected.token_ids) <= place + 1
    script = Scripted(truth, VOCAB, lambda _seed, _place: 5, lambda _seed, _place, _k: False)
    with scripted(plain, script):
        result = alone(plain, PROMPT, stopping)
    assert same(result, expected)
    assert result.logprobs == expected.logprobs
    assert result.acceptance.accepted <= len(result.token_ids)


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"frequency_penalty": -1.0},
        {"repetition_penalty": 1.7},
        {"logit_bias": ((7, 3.5), (9, -100.0))},
        {"min_tokens": 20, "stop_token_ids": tuple(range(100, 400))},
        {"min_tokens": 33, "stop_token_ids": tuple(range(3, 300)), "presence_penalty": 0.7},
    ],
    ids=str,
)
def test_options_that_depend_on_the_tokens_before(plain: LLM, options: dict[str, object]) -> None:
    sampling = params(temperature=0, max_tokens=OUTPUT, logprobs=1, **options)
    expected = alone(plain, PROMPT, sampling)
    neutral = alone(plain, PROMPT, params(temperature=0, max_tokens=OUTPUT))
    assert expected.token_ids != neutral.token_ids, "an option that changes nothing proves nothing"
    found = partly_right(plain, expected.token_ids, sampling)
    assert same(found, expected)
    assert found.logprobs == expected.logprobs


@pytest.mark.parametrize("speculation", [2, 5, "auto"])
def test_sampled_text_repeats_in_any_company(drafting: Path, speculation: object) -> None:
    llm = opened(drafting, speculation=speculation)
    sampling = params(temperature=1.0, top_p=0.9, max_tokens=40)
    prompts = ["def f(x):", "x" * 90, "y"]
    together = llm.generate(prompts * 2, sampling)
    singles = [alone(llm, prompt, sampling) for prompt in prompts]
    assert all(same(a, b) for a, b in zip(together, singles * 2, strict=True))
    again = opened(drafting, speculation=speculation).generate(prompts, sampling)
    assert all(same(a, b) for a, b in zip(again, singles, strict=True))


def test_a_seed_obeys_no_clock_and_no_neighbour(drafting: Path) -> None:
    """Measured costs, which differ from start to start, and a shared budget are for the others."""
    llm = opened(drafting, fallback=False)
    sampling = params(temperature=1.0, max_tokens=40)
    expected = alone(llm, PROMPT, sampling)
    for costs in (NEVER, ALWAYS):
        speculator(llm).costs = costs
        assert same(alone(llm, PROMPT, sampling), expected)
        pinned = llm._submit(PROMPT, sampling)
        others = [llm._submit("y" * 9, replace(sampling, seed=None)) for _ in range(2)]
        everybody = dict([pinned, *others])
        while pinned[1].finish is None:
            for sequence, emission in llm._step().items():
                everybody[sequence].take(emission)
        llm._leave([sequence for sequence, _ in others])
        assert same(pinned[1].result(), expected)


def test_stored_costs_are_what_a_seed_obeys(drafting: Path) -> None:
    llm = opened(drafting, fallback=False)
    widths = []
    for costs in (NEVER, ALWAYS):
        speculator(llm).stored = costs
        result = alone(llm, PROMPT, params(temperature=1.0, max_tokens=30))
        widths.append(result.acceptance.verified / result.acceptance.steps)
    assert widths[0] == 0
    assert widths[1] > 4


def test_argmax_refuses_sampled_requests(drafting: Path) -> None:
    llm = opened(drafting, width_rule="argmax")
    with pytest.raises(InputError, match=r"argmax.*need temperature 0, have 0\.9.*biased-argmax"):
        alone(llm, "x", params())
    assert alone(llm, "x", params(temperature=0)).acceptance.steps
    forced = opened(drafting, width_rule="biased-argmax")
    assert len(alone(forced, "x", params()).token_ids) == 24
    assert alone(opened(drafting, width_rule="argmax", speculation=2), "x", params()).token_ids
