"""MXFP4 against float64 and against an exhaustive search for the best scale."""

import numpy as np
import pytest
import torch

from deskside.errors import CheckpointError, InputError
from deskside.formats import e8m0, mxfp4

SIGNED = [*mxfp4.VALUES, *(-v for v in mxfp4.VALUES)]


def every_pair() -> tuple[torch.Tensor, torch.Tensor]:
    """All 16 codes, each in both nibbles, under all 255 scales: [255, 16] and [255, 1]."""
    nibbles = torch.arange(16, dtype=torch.uint8)
    row = nibbles | (nibbles.flip(0) << 4)
    return row.repeat(255, 1), torch.arange(255, dtype=torch.uint8).unsqueeze(1)


def test_decode_is_exact_for_all_codes_and_scales() -> None:
    codes, scales = every_pair()
    got = mxfp4.decode(codes, scales).numpy()
    low = np.array(SIGNED)
    row = np.stack([low, low[::-1]], axis=1).reshape(-1)
    exact = row[None, :] * np.exp2(np.arange(255, dtype=np.float64) - 127)[:, None]
    with np.errstate(over="ignore"):
        expected = exact.astype(np.float32)
    assert got.view(np.uint32).tolist() == expected.view(np.uint32).tolist()
    finite = np.isfinite(expected)
    assert (expected.astype(np.float64)[finite] == exact[finite]).all()
    assert finite[:253].all()  # only the two largest scales can pass float32


def test_low_nibble_is_the_even_element() -> None:
    codes = torch.zeros(1, 16, dtype=torch.uint8)
    codes[0, 0] = 0x7A  # low: -1, high: 6
    values = mxfp4.decode(codes, torch.full((1, 1), 128, dtype=torch.uint8))
    assert values[0, :3].tolist() == [-2.0, 12.0, 0.0]


def test_every_block_survives_a_round_trip() -> None:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 256, (64, 8, 32), dtype=torch.uint8, generator=generator)
    scales = torch.randint(0, 253, (64, 8, 2), dtype=torch.uint8, generator=generator)
    values = mxfp4.decode(codes, scales)
    again = mxfp4.decode(*mxfp4.encode(values))
    assert torch.equal(values.view(torch.int32), again.view(torch.int32))  # -0.0 too


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (0.25, 0.0),
        (0.75, 1.0),
        (1.25, 1.0),
        (1.75, 2.0),
        (2.5, 2.0),
        (3.5, 4.0),
        (5.0, 4.0),
        (0.2500001, 0.5),
        (4.9999995, 4.0),
        (5.0000005, 6.0),
        (3.4999998, 3.0),
    ],
)
def test_halves_round_to_the_even_code(value: float, rounded: float) -> None:
    block = torch.zeros(2, 32)
    block[:, 0] = 6.0
    block[:, 2] = 6.0
    block[:, 4] = 4.0
    block[:, 1] = torch.tensor([value, -value])
    codes, scales = mxfp4.encode(block)
    assert scales.flatten().tolist() == [127, 127]
    assert mxfp4.decode(codes, scales)[:, 1].tolist() == [rounded, -rounded]


@pytest.mark.parametrize("shape", ["normal", "outlier", "few", "flat"])
def test_no_scale_is_better(shape: str) -> None:
    generator = torch.Generator().manual_seed(2)
    blocks = torch.randn(400, 32, generator=generator)
    if shape == "outlier":
        blocks[:, 0] *= 20
    if shape == "few":
        blocks *= torch.rand(400, 32, generator=generator) < 0.2
        blocks[:, 3] += 1
    if shape == "flat":
        blocks = torch.rand(400, 1, generator=generator) * (1 + 0.01 * blocks)
    codes, scales = mxfp4.encode(blocks)
    error = (mxfp4.decode(codes, scales).double() - blocks.double()).square().sum(-1)
    table = torch.tensor(mxfp4.VALUES, dtype=torch.float64)
    for exponent in range(-12, 12):
        grid = table * 2.0**exponent
        gap = (blocks.abs().double().unsqueeze(-1) - grid).abs().amin(-1)
        rival = gap.square().sum(-1)
        assert (error <= rival * (1 + 1e-6)).all()
        tie = (rival == error) & (scales[:, 0].int() - 127 > exponent)
        assert not tie.any()


def test_zeros_extremes_and_widths() -> None:
    codes, scales = mxfp4.encode(torch.zeros(3, 64))
    assert not codes.any()
    assert not scales.any()
    large = torch.full((1, 32), torch.finfo(torch.float32).max)
    assert torch.isfinite(mxfp4.decode(*mxfp4.encode(large))).all()
    small = torch.full((1, 32), 2.0**-128)
    assert torch.equal(mxfp4.decode(*mxfp4.encode(small)), small)
    half = torch.randn(4, 32, generator=torch.Generator().manual_seed(3)).bfloat16()
    assert torch.equal(mxfp4.encode(half)[0], mxfp4.encode(half.float())[0])


def test_encoding_at_given_exponents_clips() -> None:
    values = torch.randn(5, 2, 64, generator=torch.Generator().manual_seed(6))
    codes, scales = mxfp4.encode(values)
    assert torch.equal(mxfp4.encode_at(values, scales.int() - 127), codes)
    fixed = torch.full((1, 1), 126, dtype=torch.uint8)
    row = torch.zeros(1, 32)
    row[0, :4] = torch.tensor([100.0, -100.0, 1.25, 0.125])
    got = mxfp4.decode(mxfp4.encode_at(row, fixed.int() - 127), fixed)
    assert got[0, :4].tolist() == [3.0, -3.0, 1.0, 0.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_refuses_what_is_not_a_number(bad: float) -> None:
    values = torch.zeros(2, 32)
    values[1, 7] = bad
    with pytest.raises(InputError):
        mxfp4.encode(values)
    with pytest.raises(InputError, match="32"):
        mxfp4.encode(torch.zeros(2, 48))


def test_nan_scales_are_refused_by_name() -> None:
    scales = torch.full((4, 3), 254, dtype=torch.uint8)
    e8m0.check_scales(scales, "layers.0.ffn.experts.1.w2.scale")
    scales[2, 1] = 255
    with pytest.raises(CheckpointError, match=r"layers\.0\.ffn\.experts\.1\.w2\.scale.*\[2, 1\]"):
        e8m0.check_scales(scales, "layers.0.ffn.experts.1.w2.scale")
    assert mxfp4.decode(torch.zeros(1, 16, dtype=torch.uint8), scales[2:3, 1:2]).isnan().all()
