"""Packed matrices: geometry, and shards with their own storage."""

import pytest
import torch

from deskside.errors import CheckpointError, InputError
from deskside.formats import fp8, mxfp4
from deskside.formats.packed import Axis, Format, Packed


def packed(kind: Format, *shape: int) -> Packed:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    codes, scales = (mxfp4 if kind is Format.MXFP4 else fp8).encode(values)
    return Packed(codes.view(torch.uint8), scales, kind)


@pytest.mark.parametrize("kind", list(Format))
@pytest.mark.parametrize("axis", ["rows", "columns"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_shards_own_their_bytes_and_join_to_the_whole(kind: Format, axis: Axis, count: int) -> None:
    whole = packed(kind, 3, 512, 1024)
    assert (whole.rows, whole.columns) == (512, 1024)
    parts = [whole.shard(axis, rank, count) for rank in range(count)]
    for part in parts:
        for tensor in (part.codes, part.scales):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
            assert tensor.is_contiguous()
    assert sum(part.nbytes for part in parts) == whole.nbytes
    joined = torch.cat([part.decode() for part in parts], dim=-2 if axis == "rows" else -1)
    assert torch.equal(joined, whole.decode())


@pytest.mark.parametrize(
    ("kind", "shape", "axis", "count", "nearest"),
    [
        (Format.MXFP4, (8, 96), "columns", 2, "1 or 3"),
        (Format.MXFP4, (6, 64), "rows", 4, "3 or 6"),
        (Format.MXFP4, (6, 64), "rows", 9, "6"),
        (Format.FP8, (384, 128), "rows", 2, "1 or 3"),
        (Format.FP8, (128, 512), "columns", 3, "2 or 4"),
        (Format.FP8, (64, 64), "columns", 2, "1"),
        (Format.FP8, (320, 64), "rows", 5, "1"),
    ],
)
def test_a_cut_through_a_block_is_refused(
    kind: Format, shape: tuple[int, int], axis: Axis, count: int, nearest: str
) -> None:
    with pytest.raises(InputError) as caught:
        packed(kind, *shape).shard(axis, 0, count, name="layers.0.attn.wo_b")
    message = str(caught.value)
    assert message.startswith(f"layers.0.attn.wo_b: {count} ranks")
    assert axis in message
    assert message.endswith(f"--tp {nearest}")


def test_partial_blocks_stay_whole() -> None:
    whole = packed(Format.FP8, 130, 64)
    assert whole.scales.shape == (2, 1)
    assert torch.equal(whole.shard("rows", 0, 1).decode(), whole.decode())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", list(Format))
def test_a_gpu_gives_the_same_bits(kind: Format) -> None:
    codec = mxfp4 if kind is Format.MXFP4 else fp8
    generator = torch.Generator().manual_seed(7)
    for exponent in (-130, -20, 0, 100):
        values = torch.randn(256, 512, generator=generator) * 2.0**exponent
        codes, scales = codec.encode(values)
        far_codes, far_scales = codec.encode(values.cuda())
        assert torch.equal(scales, far_scales.cpu())
        assert torch.equal(codes.view(torch.uint8), far_codes.view(torch.uint8).cpu())
        near, far = codec.decode(codes, scales), codec.decode(far_codes, far_scales).cpu()
        assert torch.equal(near.view(torch.int32), far.view(torch.int32))


@pytest.mark.parametrize(
    ("kind", "codes", "scales"),
    [
        (Format.MXFP4, (4, 8, 32), (4, 8, 1)),
        (Format.MXFP4, (4, 8, 32), (4, 7, 2)),
        (Format.MXFP4, (4, 8, 32), (3, 8, 2)),
        (Format.FP8, (256, 128), (1, 1)),
    ],
)
def test_scales_that_do_not_fit_their_codes(
    kind: Format, codes: tuple[int, ...], scales: tuple[int, ...]
) -> None:
    """An assertion would be gone under -O, and kernels would read past the end."""
    empty = (torch.zeros(shape, dtype=torch.uint8) for shape in (codes, scales))
    with pytest.raises(CheckpointError, match=r"need scales \[.*\] and have \[.*\]: get the orig"):
        Packed(*empty, kind)
