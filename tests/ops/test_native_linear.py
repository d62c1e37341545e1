"""The compiled linear: exact decoding, error, and bits that depend on a row alone."""

import pytest
import torch
from torch import Tensor

from deskside.errors import InputError
from deskside.formats.packed import Format, Packed
from deskside.kernels import native
from deskside.kernels.tiers import force_tier, tiers

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("_native_defaults")]

KINDS = ("f32", "bf16", "fp8", "mxfp4")


def make_weight(kind: str, columns: int, inner: int, seed: int = 0) -> Tensor | Packed:
    source = torch.Generator().manual_seed(seed)
    if kind in ("f32", "bf16"):
        weight = torch.randn(columns, inner, generator=source)
        return weight if kind == "f32" else weight.bfloat16()

    def codes(*shape: int, low: int = 0, high: int = 256) -> Tensor:
        return torch.randint(low, high, shape, generator=source, dtype=torch.uint8)

    if kind == "fp8":
        values = codes(columns, inner)
        values[(values & 0x7F) == 0x7F] = 0x12  # no NaN
        blocks = (-(-columns // 128), -(-inner // 128))
        return Packed(values, codes(*blocks, low=118, high=128), Format.FP8)
    return Packed(
        codes(columns, inner // 2), codes(columns, inner // 32, low=120, high=130), Format.MXFP4
    )


def as_float64(weight: Tensor | Packed) -> Tensor:
    return (weight.decode() if isinstance(weight, Packed) else weight).double()


def make_rows(rows: int, inner: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, inner, generator=torch.Generator().manual_seed(seed))


def assert_close(result: Tensor, x: Tensor, weight: Tensor | Packed) -> None:
    exact = x.double() @ as_float64(weight).T
    # The sum of magnitudes bounds what rounding can do, also where terms cancel.
    size = x.double().abs() @ as_float64(weight).abs().T
    assert ((result.double() - exact).abs() <= 2e-6 * size + 1e-30).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("leaves", [1, 2, 4, 6])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 16, 33])
def test_error_is_that_of_one_float32_sum(kind, leaves, rows):
    x, weight = make_rows(rows, 384), make_weight(kind, 130, 384)
    assert_close(native.linear(x, weight, leaves), x, weight)


@pytest.mark.parametrize("tier", tiers().available)
@pytest.mark.parametrize("kind", ["f32", "bf16", "fp8"])
@pytest.mark.parametrize(
    ("inner", "leaves"), [(1, 1), (8, 2), (33, 1), (64, 8), (100, 1), (200, 1)]
)
def test_inner_dimensions_that_fill_no_register(tier, kind, inner, leaves):
    force_tier(tier)
    weight = make_weight(kind, 19, inner)
    for rows in (1, 2, 7):
        x = make_rows(rows, inner)
        assert_close(native.linear(x, weight, leaves), x, weight)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("leaves", [1, 4])
def test_tiers_and_threads_give_the_same_bits(kind, leaves):
    x, weight = make_rows(37, 384), make_weight(kind, 260, 384)
    x[3] *= 1e-20
    x[4] *= 1e-41  # subnormal
    expected = native.linear(x, weight, leaves)
    for tier in tiers().available:
        force_tier(tier)
        for threads in (1, 2, 3):
            native.set_threads(threads)
            assert native.linear(x, weight, leaves).equal(expected)
            assert native.linear(x[:2], weight, leaves).equal(expected[:2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_its_neighbours(kind):
    weight = make_weight(kind, 50, 160)
    x = make_rows(129, 160)
    alone = torch.cat([native.linear(row, weight) for row in x.split(1)])
    for rows in (*range(1, 18), 127, 128, 129):
        assert native.linear(x[:rows], weight).equal(alone[:rows])
        assert native.linear(x[129 - rows :], weight).equal(alone[129 - rows :])
    poisoned = x.clone()
    poisoned[::2] = torch.inf
    assert native.linear(poisoned, weight)[1::2].equal(alone[1::2])


@pytest.mark.parametrize("kind", KINDS)
def test_leaves_cut_along_the_same_tree(kind):
    """Four leaves are the pairwise sum of four products over a quarter each."""
    x, weight = make_rows(6, 512), make_weight(kind, 128, 512)
    whole = native.linear(x, weight, leaves=4)
    parts = []
    for i, cut in enumerate(x.chunk(4, dim=1)):
        if isinstance(weight, Packed):
            part = weight.shard("columns", i, 4)
        else:
            part = weight.chunk(4, dim=1)[i].contiguous()
        parts.append(native.linear(cut, part))
    assert ((parts[0] + parts[1]) + (parts[2] + parts[3])).equal(whole)


@pytest.mark.parametrize("tier", tiers().available)
@pytest.mark.parametrize("rows", [1, 32])
def test_every_mxfp4_code_and_scale_decodes_exactly(tier, rows):
    force_tier(tier)
    codes = torch.arange(256, dtype=torch.uint8).view(16, 16)  # 16 x 32 codes
    columns = codes.repeat(255, 1)
    scales = torch.arange(255, dtype=torch.uint8).repeat_interleave(16).unsqueeze(1)
    weight = Packed(columns, scales, Format.MXFP4)
    unit = torch.eye(32)[:rows]
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    values = torch.cat([values, -values])
    nibbles = torch.stack([columns & 15, columns >> 4], dim=2).flatten(1).long()
    exact = (values[nibbles] * 2.0 ** (scales.double() - 127)).float()
    finite = exact.isfinite().all(1)  # an overflow times the zeros of `unit` is NaN
    assert finite.sum() >= 16 * 253
    assert native.linear(unit, weight).T[finite].equal(exact[finite, :rows])


@pytest.mark.parametrize("tier", tiers().available)
@pytest.mark.parametrize("scale", [0, 1, 119, 127, 200, 246, 247])
@pytest.mark.parametrize("rows", [1, 16])
def test_every_e4m3_code_decodes_exactly(tier, scale, rows):
    force_tier(tier)
    codes = torch.arange(256, dtype=torch.uint8).view(-1, 1)
    weight = Packed(codes, torch.full((2, 1), scale, dtype=torch.uint8), Format.FP8)
    exact = codes.view(torch.float8_e4m3fn).double() * 2.0 ** (scale - 127)
    result = native.linear(torch.ones(rows, 1), weight)
    expected = exact.float().T.expand(rows, -1)
    assert result.isnan().equal(expected.isnan())
    assert result.nan_to_num(nan=1).equal(expected.nan_to_num(nan=1))


@pytest.mark.parametrize("tier", tiers().available)
def test_multiply_adds_round_once(tier):
    """Sums whose double rounding differs from fused rounding, subnormals and infinities."""
    force_tier("portable")
    source = torch.Generator().manual_seed(5)
    bits = torch.randint(-(2**31), 2**31, (64, 160), generator=source, dtype=torch.int64)
    x = bits.int().view(torch.float32)
    weight = x.flip(0).roll(3, 1).contiguous()
    x = torch.where(x.isnan(), 1.0, x)
    weight = torch.where(weight.isnan(), 1.0, weight)
    near = 1 + torch.randint(0, 8, (64, 160), generator=source) * 2.0**-23
    for left, right in ((x, weight), (near, near.flip(0).contiguous()), (x * 1e-30, near)):
        expected = native.linear(left, right)
        force_tier(tier)
        result = native.linear(left, right)
        force_tier("portable")
        assert result.nan_to_num(nan=1.25).equal(expected.nan_to_num(nan=1.25))


def test_rows_may_lie_apart_and_may_be_none():
    weight = make_weight("bf16", 40, 64)
    x = make_rows(5, 256)
    assert native.linear(x[:, 64:128], weight).equal(native.linear(x[:, 64:128].clone(), weight))
    assert native.linear(x[:0, :64], weight).shape == (0, 40)


def test_scale_255_and_nan_spread_without_a_fault():
    weight = make_weight("mxfp4", 8, 32)
    weight.scales[2] = 255
    x = make_rows(2, 32)
    x[1, 3] = torch.nan
    result = native.linear(x, weight)
    assert result.isnan().tolist() == [[c == 2 for c in range(8)], [True] * 8]


def test_an_unknown_tier_is_refused():
    with pytest.raises(InputError, match=r"--tier mmx: this processor and build have .*portable"):
        force_tier("mmx")


def test_the_tier_in_use_says_who_chose_it():
    force_tier("auto")
    assert not tiers().forced
    assert tiers().chosen == tiers().available[0]
    force_tier("portable")
    assert tiers().forced
    assert tiers().chosen == "portable"
