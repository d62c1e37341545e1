"""The compiled row formats: the same bytes and the same floats as the definitions."""

import pytest
import torch
from torch import Tensor

from deskside.formats.rows import Float32Rows, Fp8Rows, Mxfp4Rows, RowFormat
from deskside.kernels.rows import compiled
from deskside.kernels.tiers import force_tier, tiers

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("_native_defaults")]

FORMATS = (Fp8Rows(64, 64), Fp8Rows(448, 64), Fp8Rows(128, 20), Mxfp4Rows(32), Mxfp4Rows(128))


def rows_of(dim: int) -> Tensor:
    """Ordinary rows, tiny and huge ones, zeros of both signs, and halves between grid points."""
    source = torch.Generator().manual_seed(0)
    ordinary = torch.randn(200, dim, generator=source)
    powers = torch.randint(-140, 120, (200, 1), generator=source)
    wide = torch.randn(200, dim, generator=source) * 2.0**powers
    mixed = ordinary * 2.0 ** torch.randint(-12, 3, (200, dim), generator=source)
    grid = torch.randint(-64, 65, (200, dim), generator=source) / 8.0
    zeros = torch.zeros(2, dim)
    zeros[1] = -0.0
    return torch.cat((ordinary, wide, mixed, grid, zeros, grid * 7.0))


@pytest.mark.parametrize("tier", tiers().available)
@pytest.mark.parametrize("plain", FORMATS, ids=str)
def test_bytes_and_floats_are_those_of_the_definition(plain: RowFormat, tier: str):
    force_tier(tier)
    fast = compiled(plain)
    assert (fast.width, fast.dtype) == (plain.width, plain.dtype)
    dim = plain.nope + plain.rope if isinstance(plain, Fp8Rows) else plain.dim
    rows = rows_of(dim)
    stored = plain.encode(rows)
    assert fast.encode(rows).equal(stored)
    assert fast.decode(stored).equal(plain.decode(stored))
    assert fast.encode(rows[:0]).shape == (0, plain.width)
    assert fast.decode(stored[:0]).shape == (0, dim)


@pytest.mark.parametrize("tier", tiers().available)
def test_every_code_decodes_as_defined(tier: str):
    force_tier(tier)
    codes = torch.arange(256, dtype=torch.uint8)
    scales = torch.arange(0, 255, 3, dtype=torch.uint8)
    numbers = codes[(codes & 0x7F) != 0x7F]
    plain = Fp8Rows(64, 4)
    stored = torch.zeros((len(scales), 4, plain.width), dtype=torch.uint8)
    padded = torch.cat((numbers, numbers[:2])).view(4, 64)
    stored[:, :, :64] = padded
    stored[:, :, 64] = scales.unsqueeze(1)
    stored = stored.flatten(0, 1)
    assert compiled(plain).decode(stored).equal(plain.decode(stored))
    keys = Mxfp4Rows(512)
    stored = torch.cat(
        (codes.expand(255, 256), torch.arange(255, dtype=torch.uint8).view(-1, 1).expand(-1, 16)), 1
    ).contiguous()
    assert compiled(keys).decode(stored).equal(keys.decode(stored))


@pytest.mark.parametrize("plain", [*FORMATS, Float32Rows(24)], ids=str)
@pytest.mark.parametrize("behind", [0, 1, 6])
def test_blocks_are_read_as_defined(plain: RowFormat, behind: int):
    dim = plain.nope + plain.rope if isinstance(plain, Fp8Rows) else plain.dim
    stored = plain.encode(rows_of(dim)[:120])
    blocks, rows = stored[:96].view(12, 8, plain.width), stored[100 : 100 + behind]
    fast = compiled(plain)
    for numbers in ([7], [3, 0, 11, 3], []):
        ids = torch.tensor(numbers, dtype=torch.int64)
        expected = plain.decode(torch.cat([*(blocks[n] for n in numbers), rows]))
        assert plain.read(blocks, ids, rows).equal(expected)
        assert fast.read(blocks, ids, rows).equal(expected)
        assert fast.read(blocks[1:], ids[:1] * 0, rows).equal(
            plain.decode(torch.cat([*(blocks[1] for _ in ids[:1]), rows]))
        )


def test_floats_stay_as_they_are():
    plain = Float32Rows(16)
    rows = rows_of(16)
    fast = compiled(plain)
    assert (fast.width, fast.dtype) == (plain.width, plain.dtype)
    assert fast.encode(rows) is rows
    assert fast.decode(rows) is rows
