"""The compiled integer experts equal their definition bit for bit, in every tier."""

import pytest
import torch
from torch import Tensor

from deskside.errors import CheckpointError
from deskside.formats.packed import Format, Packed
from deskside.kernels import native
from deskside.kernels.tiers import force_tier, tiers
from deskside.ops import integer_moe
from deskside.ops.integer_moe import windows_of
from tests.ops.test_integer_moe import BANKS, EXPERTS, LIMIT, MOST, TOPK, WINDOWS, banks, routed

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("_native_defaults")]


LONG = 2208
"""Inputs of experts with more groups than are added up together."""


@pytest.fixture(params=tiers().available)
def tier(request: pytest.FixtureRequest) -> str:
    force_tier(request.param)
    return str(request.param)


def sums(*arguments: Tensor) -> Tensor:
    return native.expert_sums(*arguments, *BANKS, WINDOWS)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 8, 9, 23])
@pytest.mark.parametrize("scale", [1e-5, 0.5, 40.0])
def test_every_tier_equals_the_definition(rows: int, scale: float) -> None:
    x, ids, weights = routed(rows, scale)
    ids[rows // 2, 1] = -1
    expected = integer_moe.expert_sums(x, ids, weights, *BANKS, WINDOWS)
    assert sums(x, ids, weights).equal(expected)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("width", [32, 64, 96, 128, 160, 512, 544])
def test_every_width(width: int) -> None:
    """Whole and cut groups of inputs and of hidden units, and scales below the window."""
    of = tuple(
        type(b)(b.codes.repeat(1, 2, 2), b.scales.repeat(1, 2, 2), b.format)
        for b in banks(104, 124)
    )
    w1, w3 = (
        type(b)(
            b.codes[:, :width, : width // 2].contiguous(),
            b.scales[:, :width, : width // 32].contiguous(),
            b.format,
        )
        for b in of[:2]
    )
    w2 = type(w1)(w1.codes.flip(0), w1.scales.flip(0), w1.format)
    windows = windows_of(w1, w3, w2, LIMIT, TOPK, MOST)
    x = torch.cat([routed(3)[0]] * 2, dim=1)[:, :width].contiguous() * 4
    x[0, 5] = 1e5
    x[1, :64] *= 1e-9
    _, ids, weights = routed(3)
    expected = integer_moe.expert_sums(x, ids, weights, w1, w3, w2, windows)
    assert native.expert_sums(x, ids, weights, w1, w3, w2, windows).equal(expected)


def long_experts(scales: Tensor, codes: Tensor) -> tuple[Packed, Packed, Packed]:
    """Return experts with rows of 17 groups and a quarter, and 64 hidden units."""
    w1 = Packed(codes, scales, Format.MXFP4)
    w2 = Packed(
        codes.view(EXPERTS, LONG, 32).flip(1).contiguous(),
        scales.view(EXPERTS, LONG, 2).contiguous(),
        Format.MXFP4,
    )
    return w1, w1, w2


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("binades", [0, 4, 7, 13])
@pytest.mark.parametrize("least", [112, 121])
def test_groups_of_a_vector_and_blocks_of_a_row_lie_apart(binades: int, least: int) -> None:
    """Groups whose exponents 32 bits have room for together, and groups that they have not."""
    draw = torch.Generator().manual_seed(binades)
    codes = torch.randint(0, 256, (EXPERTS, 64, LONG // 2), generator=draw).byte()
    scales = torch.randint(least, 124, (EXPERTS, 64, LONG // 32), generator=draw).byte()
    of = long_experts(scales, codes)
    windows = windows_of(*of, LIMIT, TOPK, MOST)
    _, ids, weights = routed(21)
    apart = 2.0 ** torch.randint(0, binades + 1, (21, LONG // 128 + 1), generator=draw)
    x = torch.randn(21, LONG, generator=draw) * apart.repeat_interleave(128, 1)[:, :LONG] / 64
    expected = integer_moe.expert_sums(x, ids, weights, *of, windows)
    assert native.expert_sums(x, ids, weights, *of, windows).equal(expected)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("least", [116, 117, 118, 119])
@pytest.mark.parametrize("most", [0, 3, 4])
def test_scales_near_each_other(least: int, most: int) -> None:
    """Blocks that need no plan, wherever their scales start, and those that just do."""
    draw = torch.Generator().manual_seed(most)
    codes = torch.randint(0, 256, (EXPERTS, 64, LONG // 2), generator=draw).byte()
    scales = torch.randint(least, least + most + 1, (EXPERTS, 64, LONG // 32), generator=draw)
    of = long_experts(scales.byte(), codes)
    windows = windows_of(*of, LIMIT, TOPK, MOST)
    _, ids, weights = routed(21)
    x = torch.randn(21, LONG, generator=draw) / 64
    expected = integer_moe.expert_sums(x, ids, weights, *of, windows)
    assert native.expert_sums(x, ids, weights, *of, windows).equal(expected)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("binades", [0, 3, 6])
def test_the_largest_sums_there_are(binades: int) -> None:
    """Largest weights at the largest shift times largest vectors, so far apart as 32 bits hold."""
    codes = torch.full((EXPERTS, 64, LONG // 2), 0x77).byte()
    scales = torch.full((EXPERTS, 64, LONG // 32), 123).byte()
    scales[:, :, ::4] = 120  # one block of a group is where shifts start
    of = long_experts(scales, codes)
    windows = windows_of(*of, LIMIT, TOPK, MOST)
    _, ids, weights = routed(4)
    group = torch.arange(LONG) // 128
    x = torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None] * 2.0 ** (group % 2 * binades)
    expected = integer_moe.expert_sums(x, ids, weights, *of, windows)
    assert native.expert_sums(x, ids, weights, *of, windows).equal(expected)


def test_threads_and_partitions_give_the_same_sums() -> None:
    x, ids, weights = routed(700)
    expected = sums(x, ids, weights)
    for threads in (2, 3):
        native.set_threads(threads)
        assert sums(x, ids, weights).equal(expected)
        here, there = torch.where(ids < 2, ids, -1), torch.where(ids < 2, -1, ids)
        assert (sums(x, here, weights) + sums(x, there, weights)).equal(expected)
        assert sums(*(a[511:514].contiguous() for a in (x, ids, weights))).equal(expected[511:514])


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("rows", [1, 6])
def test_any_cut_of_the_intermediate_dimension_adds_up(rows: int) -> None:
    """As ranks share an expert: whole groups of hidden units each."""
    x, ids, weights = routed(rows)
    total = torch.zeros(x.shape, dtype=torch.int64)
    for first, last in ((0, 128), (128, 256), (256, 288)):
        of = (part(BANKS[0], first, last), part(BANKS[1], first, last), across(first, last))
        total += native.expert_sums(x, ids, weights, *of, WINDOWS)
    assert total.equal(sums(x, ids, weights))


def part(of: Packed, first: int, last: int) -> Packed:
    """Return some hidden units of gate or up."""
    rows = slice(first, last)
    return Packed(of.codes[:, rows].contiguous(), of.scales[:, rows].contiguous(), of.format)


def across(first: int, last: int) -> Packed:
    """Return what down multiplies some hidden units with."""
    down = BANKS[2]
    codes = down.codes[..., first // 2 : last // 2].contiguous()
    return Packed(codes, down.scales[..., first // 32 : last // 32].contiguous(), down.format)


@pytest.mark.usefixtures("tier")
def test_extremes_and_what_is_not_finite() -> None:
    x, ids, weights = routed(8)
    x[0], x[1], x[2, 7], x[3, 9] = 0.0, 3e38, torch.nan, -torch.inf
    x[4], weights[5, 0], weights[6, 0] = 1e-42, torch.nan, 1e30
    x[7] = -3e38
    expected = integer_moe.expert_sums(x, ids, weights, *BANKS, WINDOWS)
    ours = sums(x, ids, weights)
    assert ours.equal(expected)
    finished = native.finish_experts(ours, WINDOWS, x, ids, weights)
    defined = integer_moe.finish_experts(ours, WINDOWS, x, ids, weights)
    assert finished.isnan().equal(defined.isnan())
    assert finished.nan_to_num().equal(defined.nan_to_num())


def test_unknown_experts_are_refused() -> None:
    x, ids, weights = routed(3)
    for wrong in (EXPERTS, -2):
        with pytest.raises(CheckpointError, match=f"expert {wrong} of a bank of {EXPERTS}"):
            sums(x, torch.full_like(ids, wrong), weights)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("count", [0, 7, 256, 1_000_003])
def test_a_plain_read_touches_every_byte(count: int) -> None:
    """Whole 256-byte pieces count as 64-bit words, the rest as bytes, block after block."""
    data = torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(0)).byte()
    total = 0
    for block in data.split(1 << 18):
        whole = len(block) // 256 * 256
        total += int(block[:whole].view(torch.int64).sum()) + int(block[whole:].sum())
    assert native.read(data) == total % 2**64
