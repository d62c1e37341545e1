"""FP8 blocks against float64, whole and partial."""

import numpy as np
import pytest
import torch

from deskside.errors import InputError
from deskside.formats import fp8


def e4m3(code: int) -> float:
    """The value of one E4M3 code, from its definition."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return sign * size


def test_decode_is_exact_for_all_codes_and_scales() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(1, 256).repeat(255, 1)
    values = np.array([e4m3(code) for code in range(256)])
    scales = torch.arange(255, dtype=torch.uint8)
    for scale in range(255):
        row = codes[scale : scale + 1]
        got = fp8.decode(row, scales[scale].expand(1, 2)).numpy()
        with np.errstate(over="ignore"):
            expected = (values * 2.0 ** (scale - 127)).astype(np.float32)
        np.testing.assert_array_equal(got[0], expected)
        assert (np.signbit(got[0]) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize("shape", [(128, 128), (1, 1), (130, 257), (256, 96), (2, 300, 129)])
def test_scales_cover_whole_and_partial_blocks(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(4)
    values = torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator).exp2()
    codes, scales = fp8.encode(values)
    rows, columns = shape[-2:]
    assert scales.shape == (*shape[:-2], -(-rows // 128), -(-columns // 128))
    flat = values.view(-1, rows, columns)
    for block in np.ndindex(*scales.view(-1, *scales.shape[-2:]).shape):
        matrix, i, j = block
        part = flat[matrix, i * 128 : i * 128 + 128, j * 128 : j * 128 + 128].abs().max()
        exponent = int(scales.view(-1, *scales.shape[-2:])[block]) - 127
        assert 448 * 2.0 ** (exponent - 1) < float(part) <= 448 * 2.0**exponent
    decoded = fp8.decode(codes, scales)
    assert torch.equal(decoded, fp8.decode(codes.view(torch.uint8), scales))
    assert ((decoded - values).abs() <= values.abs() / 16 + 2.0**-9 * 2.0**-6).all()
    assert torch.equal(fp8.decode(*fp8.encode(decoded)), decoded)


def test_the_largest_value_of_a_block_is_kept() -> None:
    values = torch.full((2, 2), 448.0)
    codes, scales = fp8.encode(values)
    assert scales.item() == 127
    assert torch.equal(fp8.decode(codes, scales), values)
    assert fp8.encode(torch.full((1, 1), 448.0001))[1].item() == 128
    codes, scales = fp8.encode(torch.zeros(3, 5))
    assert scales.item() == 0
    assert not fp8.decode(codes, scales).any()
    top = torch.full((2, 2), torch.finfo(torch.float32).max)
    assert fp8.decode(*fp8.encode(top)).isfinite().all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_refuses_what_is_not_a_number(bad: float) -> None:
    with pytest.raises(InputError):
        fp8.encode(torch.tensor([[1.0, bad]]))
