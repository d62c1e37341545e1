"""Chi-square tests of the real drawing code: draft, policy, acceptance, residual and bonus.

200,000 blocks in one call. Both laws depend on the token before, so a wrong row would show.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from deskside.core import SamplingParams
from deskside.speculate.acceptance import BlockUniforms, Verdict, accept
from deskside.speculate.fallback import Controller, FallbackSettings
from deskside.speculate.policy import Policy
from deskside.speculate.proposal import Proposer, draft_uniforms
from deskside.speculate.width import expect, stop

DRAWS = 200_000
VOCAB = 8
WIDTH = 3
COSTS = [1.0, 1.3, 1.5, 1.9]
USUAL = [0.5] * WIDTH


def table(params: SamplingParams, seed: int) -> Tensor:
    """Return the laws [token before, token] of a random model under a policy."""
    logits = 1.5 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))
    return torch.stack([Policy(params).law(row) for row in logits])


def blocks(p: Tensor, q: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return proposals [n, WIDTH], accepted counts [n] and next tokens [n] after token 0."""
    generator = torch.Generator().manual_seed(seed)
    before = [torch.zeros(DRAWS, dtype=torch.int64)]
    for _ in range(WIDTH):
        law = q[before[-1]]
        before.append(torch.multinomial(law, 1, generator=generator).squeeze(1))
    rows = torch.stack(before, dim=1)

    def numbers(columns: int) -> Tensor:
        return torch.rand(DRAWS, columns, generator=generator, dtype=torch.float64)

    uniforms = BlockUniforms(numbers(WIDTH), numbers(WIDTH + 1))
    verdict = accept(p[rows], q[rows[:, :-1]], rows[:, 1:], uniforms)
    return rows[:, 1:], verdict[:, 0], verdict[:, 1]


def p_value(tokens: Tensor, law: Tensor) -> float:
    """Return the chance of counts at least this far from a law."""
    counts = torch.bincount(tokens, minlength=VOCAB).double()
    assert counts[law == 0].sum() == 0, "a token without mass was emitted"
    support = law > 0
    expected = law[support] * len(tokens)
    statistic = ((counts[support] - expected) ** 2 / expected).sum()
    freedom = torch.tensor((support.sum().item() - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2)) if freedom > 0 else 1.0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.5, top_k=4),
        SamplingParams(temperature=1.2, top_k=6, top_p=0.85, min_p=0.02),
        SamplingParams(temperature=0.0),
    ],
    ids=["plain", "top-p", "top-k", "all", "greedy"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_emitted_token_follows_the_target(params: SamplingParams, seed: int) -> None:
    p, q = table(params, seed), table(params, seed + 100)
    proposals, accepted, token = blocks(p, q, seed)
    found = [p_value(torch.where(accepted > 0, proposals[:, 0], token), p[0])]
    for place in range(1, WIDTH + 1):
        reached = accepted >= place
        emitted = torch.where(accepted > place, proposals[:, min(place, WIDTH - 1)], token)
        for before in range(VOCAB):
            rows = reached & (proposals[:, place - 1] == before)
            if rows.sum() >= 1000:
                found.append(p_value(emitted[rows], p[before]))
    # A whole family is judged: each p-value against 0.001 shared out among them.
    assert min(found) > 0.001 / len(found)
    assert found[0] > 0.001


def test_a_wrong_rule_would_be_caught() -> None:
    params = SamplingParams()
    p, q = table(params, 1), table(params, 101)
    proposals, accepted, token = blocks(p, q, 1)
    assert p_value(proposals[:, 0], p[0]) < 1e-6, "every proposal kept"
    shuffled = torch.where(accepted > 0, proposals[:, 0], token.flip(0))
    assert p_value(shuffled, p[0]) < 1e-6, "next tokens of other blocks"


@pytest.mark.slow
@pytest.mark.parametrize("rule", [stop, lambda known, costs: expect(known, USUAL, costs)])
def test_one_long_seeded_text_follows_the_target(rule: Callable[..., int]) -> None:
    """The whole loop with its own numbers: draft, width, acceptance, controller, next anchor."""
    params = SamplingParams(temperature=0.9, top_p=0.95)
    policy = Policy(params)
    generator = torch.Generator().manual_seed(3)
    target = 1.2 * torch.randn(VOCAB, VOCAB, generator=generator)
    drafter = target + 0.6 * torch.randn(VOCAB, VOCAB, generator=generator)
    sure = torch.rand(VOCAB, generator=generator).tolist()
    controller = Controller(FallbackSettings(min_drafted=8, steps=3))
    text, widths = [0], set()
    while len(text) < 20_000:
        anchor = len(text) - 1
        tokens, laws, known = torch.empty(0, dtype=torch.int64), [], []
        if controller.speculates:
            one = Proposer(policy, draft_uniforms(11, 0, anchor, WIDTH))
            before = text[-1]
            for _ in range(WIDTH):
                known.append(sure[before])
                token, law = one.propose(drafter[before], tokens)
                tokens, before = torch.cat((tokens, token)), int(token)
                laws.append(law)
        width = rule(known, COSTS)
        widths.add(width)
        tokens = tokens[:width]
        rows = target[torch.tensor([text[-1], *tokens.tolist()])]
        q = torch.cat(laws)[:width] if width else torch.empty(0, VOCAB, dtype=torch.float64)
        numbers = BlockUniforms.of(11, 0, len(text), width)
        (verdict,) = Verdict.read(
            accept(policy.laws(rows, tokens), q, tokens, numbers).unsqueeze(0)
        )
        controller.observe(verdict.accepted, width)
        text += [*tokens.tolist()[: verdict.accepted], verdict.token]
    pairs = torch.tensor(text)
    found = [
        p_value(pairs[1:][pairs[:-1] == before], policy.law(target[before]))
        for before in range(VOCAB)
        if (pairs[:-1] == before).sum() >= 1000
    ]
    assert len(widths) > 2
    assert len(found) > 3
    assert min(found) > 0.001 / len(found)
