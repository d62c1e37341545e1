"""Experts in exact integers: their error, and that nothing but the row decides a bit."""

from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from deskside.formats.packed import Format, Packed
from deskside.ops import integer_moe
from deskside.ops.integer_moe import Windows, windows_of

EXPERTS, HIDDEN, INNER, TOPK, LIMIT, MOST = 5, 416, 288, 3, 10.0, 1.5


def bank(rows: int, columns: int, seed: int, least: int = 119, most: int = 124) -> Packed:
    source = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (EXPERTS, rows, columns // 2), generator=source)
    scales = torch.randint(least, most, (EXPERTS, rows, columns // 32), generator=source)
    return Packed(codes.byte(), scales.byte(), Format.MXFP4)


def banks(least: int = 119, most: int = 124) -> tuple[Packed, Packed, Packed]:
    return (
        bank(INNER, HIDDEN, 0, least, most),
        bank(INNER, HIDDEN, 1, least, most),
        bank(HIDDEN, INNER, 2, least, most),
    )


BANKS = banks()
WINDOWS = windows_of(*BANKS, LIMIT, TOPK, MOST)


def routed(rows: int, scale: float = 0.5) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(7)
    x = torch.randn(rows, HIDDEN, generator=source) * scale
    ids = torch.stack([torch.randperm(EXPERTS, generator=source)[:TOPK] for _ in range(rows)])
    weights = torch.rand(rows, TOPK, generator=source) + 0.1
    return x, ids, weights / weights.sum(1, keepdim=True) * MOST


def sums(*arguments: Tensor, of: tuple[Packed, ...] = BANKS, windows: Windows = WINDOWS) -> Tensor:
    return integer_moe.expert_sums(*arguments, *of, windows)


def numbers(
    *arguments: Tensor, of: tuple[Packed, ...] = BANKS, windows: Windows = WINDOWS
) -> Tensor:
    total = sums(*arguments, of=of, windows=windows)
    return integer_moe.finish_experts(total, windows, *arguments)


def exactly(x: Tensor, ids: Tensor, weights: Tensor, of: tuple[Packed, ...] = BANKS) -> Tensor:
    w1, w3, w2 = (bank.decode().double() for bank in of)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row, slot in ((r, s) for r in range(x.shape[0]) for s in range(ids.shape[1])):
        expert = int(ids[row, slot])
        gate = (w1[expert] @ x[row].double()).clamp(max=LIMIT)
        up = (w3[expert] @ x[row].double()).clamp(-LIMIT, LIMIT)
        hidden = torch.nn.functional.silu(gate) * up * weights[row, slot].double()
        out[row] += w2[expert] @ hidden
    return out


def error(ours: Tensor, exact: Tensor) -> float:
    """Return the largest relative error of a row."""
    return float(((ours.double() - exact).norm(dim=1) / exact.norm(dim=1)).max())


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 30.0])
def test_error_against_float64(scale: float) -> None:
    arguments = routed(6, scale)
    bound = 2e-4 if scale > 1e-2 else 1e-2  # h of 1e-6 and less lies below its window
    assert error(numbers(*arguments), exactly(*arguments)) <= bound


def test_error_with_widely_spread_scales() -> None:
    of = banks(104, 123)
    windows = windows_of(*of, LIMIT, TOPK, MOST)
    arguments = routed(4)
    assert error(numbers(*arguments, of=of, windows=windows), exactly(*arguments, of)) <= 2e-4


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    arguments = routed(40)
    whole = sums(*arguments)
    for first, last in [(0, 1), (3, 20), (39, 40), (15, 17)]:
        assert sums(*(a[first:last] for a in arguments)).equal(whole[first:last])


def test_any_partition_of_the_experts_and_any_order_adds_up() -> None:
    x, ids, weights = routed(9)
    whole = sums(x, ids, weights)
    for mask in range(1 << EXPERTS):
        here = torch.tensor([mask >> int(e) & 1 for e in ids.flatten()]).view_as(ids) == 1
        parts = (ids.where(here, -1), ids.where(~here, -1))
        assert (sums(x, parts[0], weights) + sums(x, parts[1], weights)).equal(whole)
    assert sums(x, ids.flip(1), weights.flip(1)).equal(whole)


@pytest.mark.parametrize("cuts", [(0, 128, 288), (0, 256, 288), (0, 128, 256, 288)])
def test_any_cut_of_the_intermediate_dimension_adds_up(cuts: tuple[int, ...]) -> None:
    arguments = routed(5)
    w1, w3, w2 = BANKS
    total = torch.zeros(5, HIDDEN, dtype=torch.int64)
    for first, last in pairwise(cuts):
        total += sums(
            *arguments,
            of=(_rows(w1, first, last), _rows(w3, first, last), _columns(w2, first, last)),
        )
    assert total.equal(sums(*arguments))


def _rows(of: Packed, first: int, last: int) -> Packed:
    return Packed(of.codes[:, first:last], of.scales[:, first:last], of.format)


def _columns(of: Packed, first: int, last: int) -> Packed:
    codes = of.codes[..., first // 2 : last // 2]
    return Packed(codes, of.scales[..., first // 32 : last // 32], of.format)


def test_no_sum_overflows() -> None:
    """All activations and weights at their largest, all scales at the top of the window."""
    of = tuple(
        Packed(torch.full_like(b.codes, 0x77), torch.full_like(b.scales, 124), b.format)
        for b in BANKS
    )
    wide = tuple(Packed(b.codes, b.scales.clone(), b.format) for b in of)
    wide[2].scales[0, 0, 0] = 100
    windows = windows_of(*wide, LIMIT, TOPK, LIMIT)
    x = torch.full((1, HIDDEN), 3e38)
    ids, weights = torch.arange(TOPK).unsqueeze(0), torch.full((1, TOPK), 1e30)
    total = sums(x, ids, weights, of=of, windows=windows)
    terms = TOPK * INNER * integer_moe.LARGEST * integer_moe.MOST_WEIGHT
    assert total.eq(terms << integer_moe.MOST_BUDGET).all()


def test_what_is_not_finite_reaches_its_row_alone() -> None:
    x, ids, weights = routed(4)
    expected = numbers(x, ids, weights)
    x[1, 5], x[2, 0] = torch.nan, torch.inf
    weights[3, 1] = torch.nan
    ours = numbers(x, ids, weights)
    assert ours[0].equal(expected[0])
    assert ours[1:].isnan().all()
    ids[3, 1] = -1
    assert numbers(x, ids, weights)[3].isfinite().all()


def test_nothing_to_do() -> None:
    x, ids, weights = routed(3)
    assert sums(x[:0], ids[:0], weights[:0]).shape == (0, HIDDEN)
    assert sums(x, torch.full_like(ids, -1), weights).eq(0).all()
    assert numbers(torch.zeros_like(x), ids, weights).eq(0).all()


def _fma(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    near = torch.tensor(float(exact)).double()
    around = [torch.nextafter(near.float(), torch.tensor(to)).item() for to in (-1e38, 1e38)]
    candidates = [near.float().item(), *around]
    return min(candidates, key=lambda v: (abs(Fraction(v) - exact), v != near.float().item()))


def test_fused_multiply_add_rounds_once() -> None:
    source = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 300, generator=source)
    c = torch.randn(300, generator=source) * torch.randint(-40, 20, (300,), generator=source).exp2()
    ours = integer_moe._fused(a, b, c)
    expected = [_fma(*map(float, row)) for row in zip(a, b, c, strict=True)]
    assert ours.tolist() == expected


def test_exp() -> None:
    x = torch.linspace(-87, 88, 4001)
    ours, exact = integer_moe._exp(x).double(), x.double().exp()
    assert ((ours - exact).abs() <= 2.5e-7 * exact).all()
    edges = integer_moe._exp(torch.tensor([-200.0, 0.0, 128.0]))
    assert edges.tolist() == [0.0, 1.0, torch.inf]
