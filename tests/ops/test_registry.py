"""Walk over every operation: each compiled body against its own definition, and each alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from deskside.formats import fp8, mxfp4
from deskside.formats.packed import Format, Packed
from deskside.kernels import native
from deskside.ops.integer_moe import windows_of
from deskside.ops.linear import Bundle
from deskside.ops.opset import OpSet

HEADS, WIDTH, KEYS, STREAMS, HIDDEN, INNER = 8, 128, 150, 4, 384, 512
PLAIN = OpSet()
NATIVE = PLAIN.replaced(native.bodies())


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw) * scale


def integers(low: int, high: int, *shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=draw)


def mx(*shape: int, seed: int) -> Packed:
    return Packed(*mxfp4.encode(floats(*shape, seed=seed, scale=0.05)), Format.MXFP4)


def eight(*shape: int, seed: int) -> Packed:
    codes, scales = fp8.encode(floats(*shape, seed=seed, scale=0.05))
    return Packed(codes.view(torch.uint8), scales, Format.FP8)


def present(rows: int, columns: int, limit: int, seed: int) -> Tensor:
    """Index lists whose absent keys stand at the end."""
    index = integers(0, limit, rows, columns, seed=seed)
    counts = integers(1, columns + 1, rows, 1, seed=seed + 1)
    return index.masked_fill(torch.arange(columns) >= counts, -1).to(torch.int32)


def samples(rows: int) -> dict[str, list[tuple[tuple[Any, ...], tuple[int, ...]]]]:
    """For each operation: arguments, and which of them have rows."""
    table = torch.stack((floats(rows, 32).cos(), floats(rows, 32).sin()), dim=1)
    hyper = (
        floats(24, STREAMS * HIDDEN, seed=2, scale=0.03),
        floats(24, seed=3),
        floats(3, seed=4),
    )
    head = (floats(4, STREAMS * HIDDEN, seed=2, scale=0.03), floats(4, seed=3), floats(1, seed=4))
    streams = floats(rows, STREAMS, HIDDEN, seed=1)
    banks = (
        mx(8, INNER, HIDDEN, seed=1),
        mx(8, INNER, HIDDEN, seed=2),
        mx(8, HIDDEN, INNER, seed=3),
    )
    windows = windows_of(*banks, 10.0, 2, 4.0)
    x = floats(rows, HIDDEN, seed=1)
    chosen, shares = integers(-1, 8, rows, 2), floats(rows, 2, seed=3)
    sums = integers(-(2**40), 2**40, rows, HIDDEN)
    visible = integers(0, KEYS + 1, rows, seed=2)
    weights = [
        floats(INNER, HIDDEN, seed=5, scale=0.05),
        floats(INNER, HIDDEN, seed=5, scale=0.05).bfloat16(),
        eight(INNER, HIDDEN, seed=5),
        mx(INNER, HIDDEN, seed=5),
        eight(100, HIDDEN, seed=6),
    ]
    return {
        "linear": [((x, weight, leaves), (0,)) for weight in weights for leaves in (1, 3)],
        "linears": [((x, Bundle(tuple(weights))), (0,)), ((x, Bundle((weights[2],))), (0,))],
        "grouped_linear": [((torch.cat((x, -x, x), dim=1), Bundle(tuple(weights[1:4]))), (0,))],
        "rms_norm": [
            ((floats(rows, 2, WIDTH), None, 1e-6), (0,)),
            ((x, floats(HIDDEN, seed=2).bfloat16(), 1e-6), (0,)),
        ],
        "rope_table": [((integers(0, 9000, rows), floats(32).double().abs()), (0,))],
        "rope": [
            ((floats(rows, HEADS, WIDTH), table, inverse), (0, 1)) for inverse in (False, True)
        ]
        + [((floats(rows, WIDTH), table), (0, 1))],
        "hyper_pre": [((streams, *hyper, 20, 1e-6, 1e-6), (0,))],
        "hyper_post": [
            (
                (x, streams, floats(rows, 4, seed=3), floats(rows, 4, 4, seed=4)),
                (0, 1, 2, 3),
            )
        ],
        "hyper_head": [((streams, *head, 1e-6, 1e-6), (0,))],
        "attend": [
            (
                (
                    floats(rows, HEADS, WIDTH),
                    floats(KEYS, WIDTH, seed=1),
                    present(rows, 128, KEYS, 2),
                    floats(KEYS, WIDTH, seed=3),
                    present(rows, columns, KEYS, 4) if columns else torch.zeros(rows, 0).int(),
                    floats(HEADS, seed=5),
                    WIDTH**-0.5,
                ),
                (0, 2, 4),
            )
            for columns in (0, 7, 300)
        ],
        "pool": [
            (
                (
                    floats(rows, 8, WIDTH),
                    floats(rows, 8, WIDTH, seed=1),
                    integers(0, 8, rows, 1) > torch.arange(8),
                ),
                (0, 1, 2),
            )
        ],
        "index_scores": [
            (
                (
                    floats(rows, 32, 64),
                    floats(rows, 32, seed=1),
                    floats(2 * KEYS, 64, seed=2),
                    integers(0, 2, rows, seed=3) * KEYS,
                    visible,
                    KEYS,
                ),
                (0, 1, 3, 4),
            )
        ],
        "hadamard": [((floats(rows, 64),), (0,))],
        "select": [((floats(rows, KEYS), 40), (0,))],
        "route": [((floats(rows, 8), floats(8, seed=1), 2, 1.5), (0,))],
        "route_hashed": [((floats(rows, 8), integers(0, 8, rows, 2), 1.5), (0, 1))],
        "swiglu": [
            ((floats(rows, INNER, scale=8.0), floats(rows, INNER, seed=1, scale=8.0), 10.0), (0, 1))
        ],
        "moe": [((x, chosen, shares, *banks, windows), (0, 1, 2))],
        "expert_sums": [((x, chosen, shares, *banks, windows), (0, 1, 2))],
        "finish_experts": [((sums, windows, x, chosen, shares), (0, 2, 3, 4))],
        "best": [((floats(rows, vocab).round(decimals=1),), (0,)) for vocab in (1, 21, 2048)],
    }


def outputs(body: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
    result = body(*arguments)
    return result if isinstance(result, tuple) else (result,)


def test_every_operation_has_a_sample() -> None:
    assert set(samples(1)) == set(OpSet.__dataclass_fields__)


@pytest.mark.parametrize("name", sorted(native.bodies()))
@pytest.mark.parametrize("rows", [1, 7, 16, 33])
def test_compiled_bodies_meet_their_definition(name: str, rows: int) -> None:
    for arguments, _ in samples(rows)[name]:
        ours = outputs(getattr(NATIVE, name), arguments)
        defined = outputs(getattr(PLAIN, name), arguments)
        for one, other in zip(ours, defined, strict=True):
            assert one.shape == other.shape
            assert torch.equal(one.isinf(), other.isinf())
            finite = ~other.isinf()
            error = (one - other)[finite].double().norm()
            within = 3e-4 if name == "moe" else 2e-6  # compiled experts are integers
            assert error <= within * other[finite].double().norm() + 1e-9, name


@pytest.mark.parametrize("ops", [PLAIN, NATIVE], ids=["plain", "native"])
@pytest.mark.parametrize("name", sorted(OpSet.__dataclass_fields__))
def test_a_row_does_not_depend_on_its_neighbours(name: str, ops: OpSet) -> None:
    for arguments, rowed in samples(37)[name]:
        body = getattr(ops, name)
        whole = outputs(body, arguments)
        for first, last in [(0, 1), (5, 6), (3, 19), (15, 17), (36, 37), (0, 33)]:
            cut = [
                value[first:last].clone() if place in rowed else value
                for place, value in enumerate(arguments)
            ]
            for part, all_rows in zip(outputs(body, tuple(cut)), whole, strict=True):
                assert torch.equal(part, all_rows[first:last]), (name, first, last)
