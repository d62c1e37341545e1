"""The official inference's rounding: against its formula by element, and where it applies."""

import math

import pytest
import torch
from torch import Tensor

from deskside.formats import mxfp4
from deskside.formats.packed import Packed
from deskside.ops.integer_moe import windows_of
from deskside.ops.linear import Bundle
from deskside.ops.opset import OpSet
from deskside.ops.reference import in_reference, rounded
from tests.ops.test_registry import NATIVE, PLAIN, eight, floats, mx

PLAIN_REFERENCE, NATIVE_REFERENCE = in_reference(PLAIN), in_reference(NATIVE)


def by_formula(block: list[float]) -> list[float]:
    """Round one block: s = 2^ceil(log2(max(amax, 1e-4) / 448)), then E4M3 by its steps."""
    amax = max(*(abs(v) for v in block), 1e-4)
    scale = 2.0 ** math.ceil(math.log2(amax / 448))
    found = []
    for value in block:
        q = abs(value) / scale
        step = 2.0 ** (max(math.floor(math.log2(q)) if q else -6, -6) - 3)
        found.append(math.copysign(min(round(q / step) * step, 448.0) * scale, value))
    return found


@pytest.mark.parametrize("width", [128, 200, 384])
@pytest.mark.parametrize("scale", [1e-7, 0.3, 500.0])
def test_rounding_is_the_formula(width: int, scale: float) -> None:
    x = floats(3, width, scale=scale)
    x[0, :128] = 0
    ours = rounded(x)
    for row in range(3):
        for first in range(0, width, 128):
            block = x[row, first : first + 128].double().tolist()
            assert ours[row, first : first + 128].tolist() == by_formula(block)


def test_what_is_not_finite_becomes_nan_and_stays_alone() -> None:
    x = floats(2, 256)
    clean = rounded(x)
    x[0, 3], x[1, 200] = torch.inf, torch.nan
    ours = rounded(x)
    assert ours.isnan().nonzero().tolist() == [[0, 3], [1, 200]]
    assert ours[1, :128].equal(clean[1, :128])


@pytest.mark.parametrize("ops", [PLAIN_REFERENCE, NATIVE_REFERENCE], ids=["plain", "native"])
def test_only_quantized_weights_round_their_inputs(ops: OpSet) -> None:
    x, dense = floats(5, 384), floats(64, 384, seed=2)
    assert ops.linear(x, dense).equal(ops.grouped_linear(x, Bundle((dense,))))
    for weight in (eight(64, 384, seed=3), mx(64, 384, seed=3)):
        wanted = rounded(x).double() @ weight.decode().double().T
        torch.testing.assert_close(ops.linear(x, weight).double(), wanted, rtol=1e-5, atol=1e-5)
        unrounded = x.double() @ weight.decode().double().T
        bundle = Bundle((dense, weight))
        assert ops.linears(x, bundle)[0].equal(ops.linear(x, dense))
        assert ops.linears(x, bundle)[1].equal(ops.linear(x, weight))
        whole = ops.grouped_linear(x, Bundle((weight,)))
        torch.testing.assert_close(whole.double(), unrounded, rtol=1e-5, atol=1e-5)
        assert (wanted - unrounded).abs().max() > 1e-3


def exactly(x: Tensor, ids: Tensor, weights: Tensor, banks: tuple[Packed, ...]) -> Tensor:
    w1, w3, w2 = (mxfp4.decode(b.codes, b.scales).double() for b in banks)
    out = torch.zeros(x.shape, dtype=torch.float64)
    inputs = rounded(x).double()
    for row, slot in ((r, s) for r in range(x.shape[0]) for s in range(ids.shape[1])):
        expert = int(ids[row, slot])
        if expert >= 0:
            gate, up = w1[expert] @ inputs[row], w3[expert] @ inputs[row]
            hidden = torch.nn.functional.silu(gate.clamp(max=10.0)) * up.clamp(-10.0, 10.0)
            hidden = rounded((hidden * weights[row, slot]).float()).double()
            out[row] += w2[expert] @ hidden
    return out


@pytest.mark.parametrize("ops", [PLAIN_REFERENCE, NATIVE_REFERENCE], ids=["plain", "native"])
def test_experts_round_their_inputs_and_hidden_rows(ops: OpSet) -> None:
    banks = mx(4, 256, 384, seed=1), mx(4, 256, 384, seed=2), mx(4, 384, 256, seed=3)
    x, weights = floats(7, 384), floats(7, 2, seed=4).abs()
    ids = torch.tensor([[0, 1], [2, 3], [1, 0], [3, -1], [0, 2], [-1, -1], [3, 2]])
    ours = ops.moe(x, ids, weights, *banks, windows_of(*banks, 10.0, 2, 4.0))
    wanted = exactly(x, ids, weights, banks)
    # A hidden value near a border may round the other way: one step of E4M3 at most.
    assert (ours - wanted).norm() <= 2e-3 * wanted.norm()
    assert ours[5].equal(torch.zeros(384))


@pytest.mark.parametrize("ops", [PLAIN_REFERENCE, NATIVE_REFERENCE], ids=["plain", "native"])
def test_a_row_does_not_depend_on_its_neighbours(ops: OpSet) -> None:
    banks = mx(4, 256, 384, seed=1), mx(4, 256, 384, seed=2), mx(4, 384, 256, seed=3)
    windows = windows_of(*banks, 10.0, 2, 4.0)
    x, weights = floats(37, 384), floats(37, 2, seed=4)
    ids = torch.randint(0, 4, (37, 2), generator=torch.Generator().manual_seed(0))
    whole = ops.moe(x, ids, weights, *banks, windows)
    for cut in (slice(0, 1), slice(3, 19), slice(36, 37)):
        part = ops.moe(x[cut], ids[cut], weights[cut], *banks, windows)
        assert part.equal(whole[cut])
