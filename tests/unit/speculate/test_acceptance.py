"""Acceptance: rejections at every place, the draws that follow, and numbers used once."""

import itertools

import pytest
import torch
from torch import Tensor

from deskside.speculate.acceptance import (
    BlockUniforms,
    Verdict,
    accept,
    accept_greedy,
    stacked,
)
from deskside.uniforms import Purpose, uniform
from tests.exactness.plain import draw

WIDTH, VOCAB = 4, 6


def laws(rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, VOCAB, generator=generator, dtype=torch.float64).softmax(1)


def judged(p: Tensor, q: Tensor, ids: list[int], numbers: BlockUniforms) -> Verdict:
    (verdict,) = Verdict.read(accept(p, q, torch.tensor(ids), numbers).unsqueeze(0))
    return verdict


@pytest.mark.parametrize("width", range(WIDTH + 1))
@pytest.mark.parametrize("seed", range(8))
def test_a_block_follows_the_formulas(width: int, seed: int) -> None:
    p, q = laws(width + 1, seed), laws(width, seed + 100)
    ids = [(seed + 2 * k) % VOCAB for k in range(width)]
    numbers = BlockUniforms.of(seed, 0, 40, width)
    accepted = 0
    for k, token in enumerate(ids):
        ratio = min(1, float(p[k, token] / q[k, token]))
        if uniform(seed, 0, 40 + k, Purpose.ACCEPT) >= ratio:
            break
        accepted += 1
    if accepted < width:
        law = (p[accepted] - q[accepted]).clamp(min=0)
        number = uniform(seed, 0, 40 + accepted, Purpose.RESIDUAL)
    else:
        law, number = p[width], uniform(seed, 0, 40 + width, Purpose.TARGET)
    verdict = judged(p, q, ids, numbers)
    assert verdict == Verdict(accepted, int(draw(law, number)))


def test_width_zero_is_the_plain_draw() -> None:
    p = laws(1, 3)
    for position in range(50):
        numbers = BlockUniforms.of(9, 1, position, 0)
        token = int(draw(p[0], uniform(9, 1, position, Purpose.TARGET)))
        assert judged(p, p[:0], [], numbers) == Verdict(0, token)


def test_what_the_target_likes_more_always_stays() -> None:
    p = torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    last = torch.tensor([1 - 2.0**-53], dtype=torch.float64)
    edge = BlockUniforms(last, last.expand(2))
    assert judged(p, q, [0], edge) == Verdict(1, 1)
    assert judged(p, q, [1], edge) == Verdict(0, 0), "the residual is what q misses"


def test_equal_laws_leave_no_residual_to_draw_from() -> None:
    p = laws(2, 1)
    never = BlockUniforms(torch.ones(1, dtype=torch.float64), torch.full((2,), 0.999).double())
    assert judged(p, p[:1].clone(), [2], never) == Verdict(0, VOCAB - 1)


def test_tokens_without_mass_are_never_drawn() -> None:
    p = torch.tensor([[0.0, 0.6, 0.4, 0.0]], dtype=torch.float64)
    for number, token in ((0.0, 1), (1 - 2.0**-53, 2)):
        numbers = BlockUniforms(torch.zeros(0), torch.tensor([number], dtype=torch.float64))
        assert judged(p, p[:0], [], numbers).token == token


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=WIDTH)))
def test_one_hot_laws_accept_the_argmax_alone(mask: tuple[bool, ...]) -> None:
    best = torch.tensor([3, 1, 4, 1, 5])
    ids = torch.tensor(
        [b if good else (b + 1) % VOCAB for b, good in zip(best, mask, strict=False)]
    )
    p = torch.nn.functional.one_hot(best, VOCAB).double()
    q = torch.nn.functional.one_hot(ids, VOCAB).double()
    expected = (*mask, False).index(False)
    assert judged(p, q, ids.tolist(), BlockUniforms.of(0, 0, 7, WIDTH)) == Verdict(
        expected, int(best[expected])
    )
    assert Verdict.read(accept_greedy(best, ids).unsqueeze(0)) == [
        Verdict(expected, int(best[expected]))
    ]


def test_blocks_of_one_width_are_judged_together_as_alone() -> None:
    blocks = [(laws(4, s), laws(3, s + 50), torch.tensor([s % 6, 1, 2])) for s in range(20)]
    numbers = [BlockUniforms.of(s, 0, 11, 3) for s in range(20)]
    p, q, ids = (torch.stack(column) for column in zip(*blocks, strict=True))
    together = accept(p, q, ids, stacked(numbers))
    alone = [accept(*block, one) for block, one in zip(blocks, numbers, strict=True)]
    assert torch.equal(together, torch.stack(alone))


def test_every_number_of_a_block_is_its_own() -> None:
    first, second = BlockUniforms.of(5, 0, 10, 3), BlockUniforms.of(5, 0, 14, 3)
    used = torch.cat((first.accept, first.next, second.accept, second.next)).tolist()
    assert len(set(used)) == len(used)
