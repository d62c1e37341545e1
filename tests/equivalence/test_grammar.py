"""Texts under a grammar: with speculation what they are without, and always of the grammar.

The model that ships draws them, so that its own drafter works behind the masks too.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from deskside.core import Constraint, FinishReason, SamplingParams, Thought
from deskside.errors import DesksideError, InputError
from deskside.llm import LLM, Result
from deskside.text.grammar import json_grammar, lark_grammar, regex_grammar
from deskside.text.reasoning import END_OF_REASONING
from tests.equivalence.test_engine import alone, opened, same
from tests.scripted import Scripted, scripted

MINI = "deskside-mini"
PROMPT = "config = "
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["one", "other", None]},
        "sizes": {
            "type": "array",
            "items": {"type": "integer", "minimum": -9, "maximum": 99},
            "minItems": 2,
            "maxItems": 4,
        },
        "deep": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}},
            "required": ["on"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "kind", "sizes", "deep"],
    "additionalProperties": False,
}
FORMS = {
    "schema": json_grammar(SCHEMA),
    "pattern": regex_grammar(r"[A-Z]{2}-[0-9]{4}(/[a-z]{1,6}){1,3}"),
    "lark": lark_grammar('start: "(" start ")" | /[0-9]{1,3}/ | start "+" start\n'),
}


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    with opened(MINI, speculation="off") as llm:
        yield llm


@pytest.fixture(scope="module")
def auto() -> Iterator[LLM]:
    with opened(MINI, fallback=False, speculation=5) as llm:
        yield llm


def params(grammar: str, **options: object) -> SamplingParams:
    defaults = {"temperature": 0, "max_tokens": 300, "seed": 5}
    constraint = options.pop("constraint", Constraint(grammar))
    return SamplingParams(constraint=constraint, **{**defaults, **options})  # type: ignore[arg-type]


def free(llm: LLM) -> object:
    return llm._runtime.engine.free, llm._runtime.engine._owners.grammars._texts


@pytest.mark.parametrize("form", FORMS)
def test_greedy_texts_are_the_same_with_speculation(plain: LLM, auto: LLM, form: str) -> None:
    sampling = params(FORMS[form], logprobs=2)
    expected, found = alone(plain, PROMPT, sampling), alone(auto, PROMPT, sampling)
    assert same(found, expected)
    assert found.logprobs == expected.logprobs
    assert found.acceptance.accepted > 0
    assert free(plain)[1] == free(auto)[1] == {}  # type: ignore[index]


def test_company_changes_nothing_under_grammars(auto: LLM) -> None:
    for temperature in (0.0, 1.2):
        sampling = [params(text, temperature=temperature) for text in FORMS.values()]
        singles = [alone(auto, PROMPT, one) for one in sampling]
        for one, single in zip(sampling, singles, strict=True):
            together = auto.generate([PROMPT, "x", PROMPT], one)
            assert same(together[0], single)
            assert same(together[2], single)


@pytest.mark.parametrize("offset", range(6))
def test_the_end_of_a_text_in_any_place_of_a_block(plain: LLM, offset: int) -> None:
    """The end is proposed where the text may end, and behind it what comes never counts."""
    sampling = params(FORMS["schema"], logprobs=0)
    truth = alone(plain, PROMPT, sampling)
    assert truth.finish is FinishReason.STOP
    count = len(truth.token_ids)
    said = [*truth.token_ids, 400, 401, 402, 403, 404, 405]
    first = (count - 1 - offset) % 6 or 6

    def width(_seed: int, place: int) -> int:
        return 5 if place >= first else 0

    script = Scripted(said, plain.plan.spec.vocab, width, lambda _s, _p, _k: False)
    with scripted(plain, script):
        found = alone(plain, PROMPT, sampling)
    assert same(found, truth)
    assert found.logprobs == truth.logprobs
    assert script.accepted > 5


@pytest.mark.parametrize("wrong", range(5))
def test_an_end_or_any_other_wrong_token_is_never_taken(plain: LLM, wrong: int) -> None:
    """Proposals that the grammar forbids, the end among them, at every place of a block."""
    sampling = params(FORMS["schema"])
    truth = alone(plain, PROMPT, sampling)
    eos = plain.tokenizer.eos
    for evil in (eos, *plain.tokenizer.encode_plain("\x00")):

        def shift(_seed: int, place: int, k: int, evil: int = evil) -> int:
            return evil - truth.token_ids[place] if k == wrong else 0

        width = plain.plan.spec.vocab
        script = Scripted(truth.token_ids, width, lambda _s, _p: 5, shift)  # type: ignore[arg-type]
        with scripted(plain, script):
            assert same(alone(plain, PROMPT, sampling), truth)


def test_options_go_together_with_a_grammar(plain: LLM, auto: LLM) -> None:
    """Penalties, bias, least tokens and stop strings, as without speculation."""
    comma = plain.tokenizer.encode_plain(",")[0]
    for options in (
        {"repetition_penalty": 1.4, "presence_penalty": 1.0},
        {"logit_bias": ((comma, -50.0),)},
        {"min_tokens": 100},
        {"stop": ('"kind',)},
    ):
        sampling = params(FORMS["schema"], **options)
        expected, found = alone(plain, PROMPT, sampling), alone(auto, PROMPT, sampling)
        assert same(found, expected)
        if "stop" in options:
            assert expected.text.rstrip().endswith(",")
            assert '"kind' not in expected.text
        else:
            json.loads(expected.text)
        assert expected.finish is FinishReason.STOP


def answered(result: Result) -> str:
    """Return what stands behind the end of the thought."""
    thought, mark, answer = result.text.partition(END_OF_REASONING)
    assert mark, thought
    return answer


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 9])
def test_a_grammar_begins_behind_a_thought_closed_in_any_place(
    plain: LLM, auto: LLM, limit: int
) -> None:
    close = plain.tokenizer.controls[END_OF_REASONING]
    sampling = params(
        "",
        constraint=Constraint(FORMS["pattern"], END_OF_REASONING),
        thought=Thought((close,), (END_OF_REASONING,), limit),
    )
    expected, found = alone(plain, PROMPT, sampling), alone(auto, PROMPT, sampling)
    assert same(found, expected)
    assert re.fullmatch(r"[A-Z]{2}-[0-9]{4}(/[a-z]{1,6}){1,3}", answered(expected))
    assert expected.token_ids[limit] == close


@pytest.mark.parametrize("offset", range(6))
def test_a_block_across_the_end_of_a_thought(plain: LLM, offset: int) -> None:
    """The end in any place, a wrong first token of the answer behind it, and the text's own end."""
    close, eos = plain.tokenizer.controls[END_OF_REASONING], plain.tokenizer.eos
    spell = plain.tokenizer.encode_plain
    sampling = params("", constraint=Constraint(FORMS["schema"], END_OF_REASONING))
    sampling = replace(sampling, logit_bias=((close, 100.0),))
    truth = alone(plain, PROMPT, sampling)
    assert truth.token_ids[0] == close, "the bias lets it end at once"
    json.loads(answered(truth))
    for behind in ((eos,), spell("{x"), spell("["), truth.token_ids[1:4]):
        thought = spell("so")[:1] * offset
        block = [*thought, close, *behind]
        script = Scripted(
            [0, *block], plain.plan.spec.vocab, lambda _s, _p: 5, lambda _s, _p, _k: False
        )
        held = Constraint(FORMS["schema"], END_OF_REASONING)
        with scripted(plain, script):
            found = alone(plain, PROMPT, params("", constraint=held, logit_bias=((close, 100.0),)))
        assert same(found, truth)


def test_a_thought_under_a_grammar_does_not_end_the_text(plain: LLM) -> None:
    eos = plain.tokenizer.eos
    held = Constraint(FORMS["schema"], END_OF_REASONING)
    sampling = params("", constraint=held, logit_bias=((eos, 100.0),), max_tokens=12)
    result = alone(plain, PROMPT, sampling)
    assert result.finish is FinishReason.LENGTH
    assert eos not in result.token_ids


def test_a_grammar_that_goes_on_too_far_ends_its_own_request_alone(plain: LLM) -> None:
    """A rule that outgrows its bounds in the middle of a text is that request's fault."""
    bomb = regex_grammar("(a|aa|aaa){1,3000}b" + "(x|y)?" * 2000)
    with pytest.raises(DesksideError, match="cannot be followed"):
        alone(plain, PROMPT, params(bomb))
    assert free(plain)[1] == {}  # type: ignore[index]
    assert alone(plain, PROMPT, params(FORMS["pattern"])).finish is FinishReason.STOP


def test_a_grammar_has_an_end_that_cannot_be_ignored() -> None:
    with pytest.raises(InputError, match="ignore_eos"):
        params(FORMS["pattern"], ignore_eos=True)
