"""Drawing proposals: the law of each row, and numbers that belong to one draft alone."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from deskside.core import SamplingParams
from deskside.speculate.acceptance import drawn
from deskside.speculate.policy import History, Policy
from deskside.speculate.proposal import Proposer, draft_uniforms
from deskside.uniforms import Purpose, uniform
from tests.exactness.plain import draw

LOGITS = torch.tensor([1.0, 3.0, 2.0, 3.0, -1.0, 0.0])
NOTHING = torch.empty(0, dtype=torch.int64)


def proposer(params: SamplingParams, anchor: int = 9) -> Proposer:
    return Proposer(Policy(params), draft_uniforms(5, 0, anchor, 4), History.of([0], [2], 6))


def block(one: Proposer) -> tuple[Tensor, Tensor]:
    tokens, laws = NOTHING, []
    for _ in range(4):
        token, law = one.propose(LOGITS, tokens)
        tokens = torch.cat((tokens, token))
        laws.append(law)
    return tokens, torch.cat(laws)


def test_numbers_are_keyed_by_anchor_and_place() -> None:
    numbers = draft_uniforms(5, 1, 40, 3)
    assert numbers.tolist() == [uniform(5, 1, 40, Purpose.DRAFT, k) for k in range(3)]
    both = torch.cat((numbers, draft_uniforms(5, 1, 41, 3)))
    assert len(set(both.tolist())) == 6, "position 42 is drafted by both, from other numbers"


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6, top_p=0.9, min_p=0.05),
        SamplingParams(frequency_penalty=1.5, repetition_penalty=1.3, top_k=3),
    ],
)
def test_a_proposal_is_drawn_from_the_law_of_its_row(params: SamplingParams) -> None:
    one = proposer(params)
    tokens, laws = block(one)
    assert torch.equal(laws, one.policy.laws(LOGITS.expand(4, -1), tokens, one.history))
    for law, token, number in zip(laws, tokens.tolist(), one.uniforms.tolist(), strict=True):
        assert token == int(draw(law, number))


def test_a_greedy_proposal_is_the_argmax_and_has_no_law() -> None:
    tokens, laws = block(proposer(SamplingParams(temperature=0, frequency_penalty=2.0)))
    assert tokens.tolist() == [1, 3, 0, 1]
    assert laws.shape == (0, 6)


@pytest.mark.parametrize("seed", range(5))
def test_a_draw_on_the_device_is_the_plain_draw(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    law = torch.rand(50, generator=generator, dtype=torch.float64)
    law = torch.where(law < 0.3, 0, law) / 7
    for number in (0.0, 1e-12, 0.25, 0.9, 1 - 2.0**-53, float(law.cumsum(0)[20] / law.sum())):
        found = drawn(law, torch.tensor([number], dtype=torch.float64))
        assert found.tolist() == [int(draw(law, number))]


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_grammar_is_asked_behind_every_proposal(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    asked: list[list[int]] = []

    def allowed(before: Sequence[int]) -> Tensor | None:
        asked.append(list(before))
        return None if before else torch.tensor([True, False, False, False, True, False])

    one = Proposer(Policy(params), draft_uniforms(5, 0, 9, 4), None, allowed)
    tokens, laws = block(one)
    assert asked == [tokens[:count].tolist() for count in range(4)]
    assert tokens[0] in (0, 4)
    if temperature:
        assert laws[0].nonzero().flatten().tolist() == [0, 4]
        assert laws[1].count_nonzero() == 6
