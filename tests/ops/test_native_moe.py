"""The compiled experts in float32: the definition's numbers, in an order that a row alone decides.

A tier that prefers integers for prompt rows has a test of its own, at the end.
"""

import pytest
import torch
from torch import Tensor

from deskside.formats.packed import Format, Packed
from deskside.kernels import _native, native
from deskside.kernels.tiers import force_tier, tiers
from deskside.ops.integer_moe import windows_of

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("_native_defaults", "_floats")]

EXPERTS, HIDDEN, INNER, TOPK, LIMIT = 5, 96, 160, 3, 2.0


def bank(rows: int, columns: int, seed: int) -> Packed:
    source = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (EXPERTS, rows, columns // 2), generator=source)
    scales = torch.randint(122, 126, (EXPERTS, rows, columns // 32), generator=source)
    return Packed(codes.byte(), scales.byte(), Format.MXFP4)


BANKS = (bank(INNER, HIDDEN, 0), bank(INNER, HIDDEN, 1), bank(HIDDEN, INNER, 2))

WINDOWS = windows_of(*BANKS, LIMIT, TOPK, 1.1)


def routed(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(7)
    x = torch.randn(rows, HIDDEN, generator=source)
    ids = torch.stack([torch.randperm(EXPERTS, generator=source)[:TOPK] for _ in range(rows)])
    ids[2::5, 1] = -1
    weights = torch.rand(rows, TOPK, generator=source) + 0.1
    return x, ids, weights


def adds_floats(tier: str) -> bool:
    force_tier(tier)
    return not _native.prefers_integers()


FLOATS = [tier for tier in tiers().available if adds_floats(tier)]
INTEGERS = [tier for tier in tiers().available if tier not in FLOATS]
force_tier("auto")


@pytest.fixture
def _floats() -> None:
    force_tier(FLOATS[0])


def run(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    return native.moe(x, ids, weights, *BANKS, WINDOWS)


def exactly(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    w1, w3, w2 = (bank.decode().double() for bank in BANKS)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row in range(x.shape[0]):
        for slot in range(TOPK):
            expert = int(ids[row, slot])
            if expert < 0:
                continue
            gate = (w1[expert] @ x[row].double()).clamp(max=LIMIT)
            up = (w3[expert] @ x[row].double()).clamp(-LIMIT, LIMIT)
            hidden = torch.nn.functional.silu(gate) * up * weights[row, slot].double()
            out[row] += w2[expert] @ hidden
    return out


@pytest.mark.parametrize("rows", [1, 2, 6, 40])
def test_error_is_that_of_float32(rows):
    x, ids, weights = routed(rows)
    exact = exactly(x, ids, weights)
    error = (run(x, ids, weights).double() - exact).abs()
    assert (error <= 5e-6 * exact.abs().amax(1, keepdim=True)).all()


def test_tiers_and_threads_give_the_same_bits():
    arguments = routed(40)
    expected = run(*arguments)
    for tier in FLOATS:
        force_tier(tier)
        for threads in (1, 2, 3):
            native.set_threads(threads)
            assert run(*arguments).equal(expected)


def test_a_row_does_not_depend_on_its_neighbours():
    """Also across the boundary at which a call is cut into rounds of rows."""
    arguments = routed(700)
    whole = run(*arguments)
    for rows in (*range(1, 18), 127, 128, 129, 513):
        for begin in (0, 700 - rows):
            cut = slice(begin, begin + rows)
            assert run(*(a[cut].contiguous() for a in arguments)).equal(whole[cut])


def test_a_skipped_expert_counts_for_nothing():
    x, ids, weights = routed(9)
    weights = torch.where(ids < 0, torch.nan, weights)
    assert run(x, ids, weights).isfinite().all()
    assert run(x, torch.full_like(ids, -1), weights).equal(torch.zeros_like(x))


def test_two_executors_add_up():
    """Skipping is what lets another executor take some of the experts."""
    x, ids, weights = routed(8)
    here, there = torch.where(ids < 2, ids, -1), torch.where(ids < 2, -1, ids)
    both = run(x, here, weights) + run(x, there, weights)
    torch.testing.assert_close(both, run(x, ids, weights), rtol=1e-4, atol=1e-4)


def test_no_rows_and_nan_and_unknown_experts():
    x, ids, weights = routed(3)
    assert run(x[:0], ids[:0], weights[:0]).shape == (0, HIDDEN)
    poisoned = x.clone()
    poisoned[1, 0] = torch.nan
    result = run(poisoned, ids, weights)
    assert result[1].isnan().all()
    assert result[::2].equal(run(x, ids, weights)[::2])
    for wrong in (EXPERTS, -2):
        with pytest.raises(IndexError, match=f"expert {wrong} of a bank of {EXPERTS}"):
            run(x, torch.full_like(ids, wrong), weights)


@pytest.mark.skipif(not INTEGERS, reason="needs a processor with a matrix unit")
@pytest.mark.parametrize("rows", [1, 6, 40, 700])
def test_prompt_rows_on_a_matrix_unit_are_the_integer_experts(rows):
    x, ids, weights = routed(rows)
    for tier in INTEGERS:
        force_tier(tier)
        ours = run(x, ids, weights)
        sums = native.expert_sums(x, ids, weights, *BANKS, WINDOWS)
        assert ours.equal(native.finish_experts(sums, WINDOWS, x, ids, weights))
        exact = exactly(x[:9], ids[:9], weights[:9])
        assert (ours[:9].double() - exact).norm() <= 3e-4 * exact.norm()
