"""The policy: every step against its formula, and neutral values that change nothing."""

import math

import pytest
import torch

from deskside.core import SamplingParams
from deskside.errors import InputError
from deskside.ops.sample import target_distribution
from deskside.speculate.policy import History, Policy

LOGITS = torch.tensor([1.0, 3.0, 2.0, 3.0, -1.0, 0.0])
VOCAB = len(LOGITS)


def history(prompt: list[int], output: list[int]) -> History:
    return History.of(prompt, output, VOCAB)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_neutral_values_leave_the_plain_law(temperature: float, top_k: int, top_p: float) -> None:
    policy = Policy(SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p), ends=(1,))
    plain = target_distribution(LOGITS, temperature, top_k, top_p)
    assert not policy.needs_history
    assert policy.adjust(LOGITS) is LOGITS
    assert torch.equal(policy.law(LOGITS), plain)
    assert torch.equal(policy.law(LOGITS, history([1], [2])), plain)


def test_temperature_zero_is_one_token_the_lower_of_equals() -> None:
    policy = Policy(SamplingParams(temperature=0))
    assert policy.law(LOGITS).tolist() == [0, 1, 0, 0, 0, 0]
    assert policy.best(LOGITS.unsqueeze(0), torch.tensor([])).tolist() == [1]


def test_penalties_by_their_formulas() -> None:
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    adjusted = Policy(params).adjust(LOGITS, history([1, 4], [2, 2, 5]))
    expected = [1.0, 3.0 / 2, 2.0 / 2 - 2 * 0.5 - 0.25, 3.0, -1.0 * 2, 0.0 - 0.5 - 0.25]
    assert adjusted.tolist() == expected


def test_bias_comes_after_the_penalties() -> None:
    params = SamplingParams(repetition_penalty=2.0, logit_bias=((0, -100.0), (3, 1.5)))
    adjusted = Policy(params).adjust(LOGITS, history([0], []))
    assert adjusted.tolist() == [0.5 - 100, 3.0, 2.0, 4.5, -1.0, 0.0]


def test_ends_have_no_mass_before_enough_tokens() -> None:
    policy = Policy(SamplingParams(min_tokens=2, max_tokens=9), ends=(1, 3))
    assert policy.law(LOGITS, history([0], [5]))[[1, 3]].tolist() == [0, 0]
    assert torch.equal(
        policy.law(LOGITS, history([0], [5, 5])), target_distribution(LOGITS, 1, 0, 1)
    )
    laws = policy.laws(LOGITS.expand(3, -1), torch.tensor([5, 5]), history([0], []))
    assert [float(law[1]) > 0 for law in laws] == [False, False, True]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_min_p_is_relative_to_the_likeliest(temperature: float) -> None:
    whole = target_distribution(LOGITS, temperature, 0, 1)
    law = Policy(SamplingParams(temperature=temperature, min_p=0.2)).law(LOGITS)
    kept = whole >= 0.2 * whole.max()
    assert torch.equal(law > 0, kept)
    assert torch.allclose(law, torch.where(kept, whole, 0) / whole[kept].sum())
    only = Policy(SamplingParams(temperature=temperature, min_p=1.0)).law(LOGITS)
    assert only.tolist() == pytest.approx([0, 0.5, 0, 0.5, 0, 0])


def test_min_p_stands_before_top_p() -> None:
    law = Policy(SamplingParams(min_p=0.3, top_p=0.75)).law(LOGITS)
    # Tokens 1, 3 and 2 pass min-p with weights e, e, 1; of these 0.75 takes the first two.
    assert 2 * math.e / (2 * math.e + 1) > 0.75
    assert law.tolist() == pytest.approx([0, 0.5, 0, 0.5, 0, 0])


def test_a_row_counts_the_proposals_before_it() -> None:
    params = SamplingParams(frequency_penalty=1.0, repetition_penalty=1.5, temperature=0.7)
    policy = Policy(params)
    before = history([4, 4], [1])
    proposals = torch.tensor([3, 1])
    laws = policy.laws(LOGITS.expand(3, -1), proposals, before)
    for row, emitted in enumerate([[1], [1, 3], [1, 3, 1]]):
        assert torch.equal(laws[row], policy.law(LOGITS, history([4, 4], emitted)))
    assert before.output.tolist() == [0, 1, 0, 0, 0, 0], "the history itself stays"
    greedy = Policy(SamplingParams(frequency_penalty=2.0, temperature=0))
    rows = LOGITS.expand(3, -1)
    assert greedy.best(rows, torch.tensor([1, 3]), history([], [])).tolist() == [1, 3, 2]
    one_hot = greedy.laws(rows, torch.tensor([1, 3]), history([], []))
    assert one_hot.argmax(1).tolist() == [1, 3, 2]


def test_a_policy_with_penalties_wants_its_history() -> None:
    with pytest.raises(AssertionError):
        Policy(SamplingParams(presence_penalty=1.0)).law(LOGITS)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("min_p", 1.5, "min-p"),
        ("min_p", float("nan"), "min-p"),
        ("presence_penalty", 2.5, "presence_penalty"),
        ("frequency_penalty", -3, "frequency_penalty"),
        ("repetition_penalty", 0.0, "repetition_penalty"),
        ("repetition_penalty", float("inf"), "repetition_penalty"),
        ("logit_bias", ((3, 1.0), (3, 2.0)), "logit_bias"),
        ("logit_bias", ((-1, 1.0),), "logit_bias"),
        ("logit_bias", ((1, 101.0),), "logit_bias"),
        ("min_tokens", -1, "min-tokens"),
        ("logprobs", -1, "logprobs"),
        ("logprobs", 21, "logprobs"),
        ("min_tokens", 300, "max-tokens = 256"),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SamplingParams(**{field: value})


def only(*tokens: int) -> torch.Tensor:
    return torch.tensor([token in tokens for token in range(LOGITS.shape[0])])


def test_a_grammar_leaves_the_law_of_what_it_allows() -> None:
    law = Policy(SamplingParams(temperature=0.7, top_k=2)).law(LOGITS, None, only(0, 2, 4))
    among = torch.where(only(0, 2, 4), LOGITS, -torch.inf)
    assert torch.equal(law, target_distribution(among, 0.7, 2, 1)), "cuts come behind the grammar"
    assert law.nonzero().flatten().tolist() == [0, 2]
    greedy = Policy(SamplingParams(temperature=0))
    masks = [only(0, 2), None, only(4)]
    rows = LOGITS.expand(3, -1)
    assert greedy.best(rows, torch.tensor([0, 0]), None, masks).tolist() == [2, 1, 4]
    laws = greedy.laws(rows, torch.tensor([0, 0]), None, masks)
    assert laws.argmax(1).tolist() == [2, 1, 4]


def test_a_grammar_wins_over_a_least_number_of_tokens() -> None:
    policy = Policy(SamplingParams(min_tokens=2, max_tokens=9), ends=(1, 3))
    held = policy.law(LOGITS, history([0], []), only(1, 2))
    assert held.nonzero().flatten().tolist() == [2], "while there is something else"
    ended = policy.law(LOGITS, history([0], []), only(1, 3))
    assert ended.nonzero().flatten().tolist() == [1, 3]
    assert not ended.isnan().any()
