"""The compiled experts of prompt rows: the integers of generated ones, near the definition."""

import pytest
import torch
from torch import Tensor

from deskside.errors import CheckpointError
from deskside.formats.packed import Format, Packed
from deskside.kernels import native
from deskside.kernels.tiers import force_tier, tiers
from deskside.ops import integer_moe
from deskside.ops.integer_moe import windows_of

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("_native_defaults")]

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
def test_error_against_float64(rows):
    x, ids, weights = routed(rows)
    exact = exactly(x, ids, weights)
    assert (run(x, ids, weights).double() - exact).norm() <= 3e-4 * exact.norm()


@pytest.mark.parametrize("rows", [1, 6, 40, 700])
def test_every_tier_gives_the_integer_experts(rows):
    x, ids, weights = routed(rows)
    sums = integer_moe.expert_sums(x, ids, weights, *BANKS, WINDOWS)
    expected = integer_moe.finish_experts(sums, WINDOWS, x, ids, weights)
    for tier in tiers().available:
        force_tier(tier)
        for threads in (1, 2, 3):
            native.set_threads(threads)
            assert run(x, ids, weights).equal(expected)


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


def test_no_rows_and_nan_and_unknown_experts():
    x, ids, weights = routed(3)
    assert run(x[:0], ids[:0], weights[:0]).shape == (0, HIDDEN)
    poisoned = x.clone()
    poisoned[1, 0] = torch.nan
    result = run(poisoned, ids, weights)
    assert result[1].isnan().all()
    assert result[::2].equal(run(x, ids, weights)[::2])
    for wrong in (EXPERTS, -2):
        with pytest.raises(CheckpointError, match=f"expert {wrong} of a bank of {EXPERTS}"):
            run(x, torch.full_like(ids, wrong), weights)
