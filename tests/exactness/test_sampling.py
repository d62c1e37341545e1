"""Drawing: tokens follow the law that temperature, top-k and top-p leave."""

import math

import pytest
import torch
from torch import Tensor

from deskside.core import Request, SamplingParams
from deskside.engine.live import Live
from deskside.engine.verify import Proposal, Question, judge
from deskside.errors import NanLogitsError
from deskside.ops.sample import greedy, target_distribution
from deskside.speculate.acceptance import drawn as drawn_by
from deskside.speculate.policy import Policy
from deskside.speculate.stop import StopRule

LOGITS = torch.tensor([1.0, 3.0, 2.0, 3.0, -1.0])


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    return [weight / sum(weights) for weight in weights]


def expected(temperature: float, top_k: int, top_p: float) -> list[float]:
    """Enumerate the definition with plain floats, ties to the lower token."""
    scaled = [value / temperature for value in LOGITS.tolist()]
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    order = order[: top_k or len(order)]
    mass = softmax([scaled[token] for token in order])
    kept, total = [], 0.0
    for token, part in zip(order, mass, strict=True):
        if total < top_p:
            kept.append((token, part))
        total += part
    whole = sum(part for _, part in kept)
    law = [0.0] * len(scaled)
    for token, part in kept:
        law[token] = part / whole
    return law


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 2, 4, 99])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.45, 0.01])
def test_distribution_is_the_definition(temperature: float, top_k: int, top_p: float) -> None:
    law = target_distribution(LOGITS, temperature, top_k, top_p)
    assert law.tolist() == pytest.approx(expected(temperature, top_k, top_p), abs=1e-12)


def draw(law: Tensor, number: float) -> Tensor:
    return drawn_by(law, torch.tensor([number], dtype=torch.float64))


def test_draws_follow_the_distribution() -> None:
    law = torch.tensor([0.2, 0.0, 0.5, 0.3, 0.0], dtype=torch.float64)
    count = 1000
    found = [0] * 5
    for step in range(count):
        found[int(draw(law, (step + 0.5) / count))] += 1
    assert found == [200, 0, 500, 300, 0]


def test_the_edges_of_a_draw_never_leave_the_support() -> None:
    law = torch.tensor([0.0, 0.7, 0.0, 0.3, 0.0], dtype=torch.float64)
    assert int(draw(law, 0.0)) == 1
    assert int(draw(law, 1 - 2.0**-53)) == 3
    assert int(draw(law / 3, 1 - 2.0**-53)) == 3


def test_greedy_takes_the_lower_of_two() -> None:
    rows = torch.stack((LOGITS, LOGITS.flip(0), torch.zeros(5)))
    assert greedy(rows).tolist() == [1, 1, 0]


@pytest.mark.parametrize("width", [7, 64, 2048, 129_280])
def test_greedy_takes_the_first_of_many(width: int) -> None:
    draw = torch.Generator().manual_seed(width)
    rows = torch.randint(0, 3, (6, width), generator=draw).float()
    assert greedy(rows).tolist() == [row.index(max(row)) for row in rows.tolist()]


def live_of(params: SamplingParams) -> Live:
    request = Request((1,), params)
    return Live(request, params.seed or 1, Policy(params), StopRule(request, 4, None))


def question(position: int, seed: int = 1, **options: float) -> Question:
    """Ask for the token of a position, behind a prompt of one token."""
    params = SamplingParams(seed=seed, **options)  # type: ignore[arg-type]
    known = (1,) * position
    return Question(live_of(params), known, Proposal.none())


def answers(logits: Tensor, questions: list[Question]) -> list[int]:
    verdicts = judge(logits.expand(len(questions), -1), questions)
    assert all(verdict.accepted == 0 for verdict in verdicts)
    return [verdict.token for verdict in verdicts]


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_number_is_refused(value: float, temperature: float) -> None:
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(1))
    logits[0, 7], logits[0, 9] = 3.4e38, -3.4e38
    assert judge(logits.clone(), [question(5, temperature=temperature)])
    assert judge(logits.abs() * 0 + 3.4e38, [question(5, temperature=0.0)])
    logits[0, 123] = value
    with pytest.raises(NanLogitsError):
        judge(logits, [question(5, temperature=temperature)])


def drawn(logits: Tensor, seed: int, positions: range, **options: float) -> list[int]:
    return answers(logits, [question(1 + position, seed, **options) for position in positions])


def test_same_seed_same_tokens_in_any_company() -> None:
    whole = drawn(LOGITS, 42, range(60))
    assert whole == [drawn(LOGITS, 42, range(at, at + 1))[0] for at in range(60)]
    assert whole != drawn(LOGITS, 43, range(60))
    assert len(set(whole)) > 1


def test_sampled_tokens_pass_a_chi_square_test() -> None:
    count = 5000
    tokens = drawn(LOGITS, 7, range(count), temperature=1.3, top_k=4, top_p=0.95)
    law = expected(1.3, 4, 0.95)
    assert all(law[token] > 0 for token in tokens)
    statistic = sum(
        (tokens.count(token) - count * part) ** 2 / (count * part)
        for token, part in enumerate(law)
        if part
    )
    assert statistic < 16.3  # 3 degrees of freedom, p = 0.001


def test_mixed_rows_draw_as_alone() -> None:
    mixed = [question(5, temperature=0.0), question(5, temperature=1.0)]
    assert answers(LOGITS, mixed) == [answers(LOGITS, [one])[0] for one in mixed]


def test_penalties_count_what_was_emitted() -> None:
    params = SamplingParams(temperature=0, presence_penalty=1.5, frequency_penalty=0.1)

    def after(*output: int) -> int:
        one = Question(live_of(params), (1, *output), Proposal.none())
        return answers(LOGITS, [one])[0]

    assert [after(), after(1), after(1, 3), after(1, 3, 2)] == [1, 3, 2, 1]
