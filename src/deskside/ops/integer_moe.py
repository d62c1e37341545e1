"""The routed experts of generated rows in exact integers: the definition, which all bodies equal.

Integer sums have no order, so instruction set, threads, tiles, devices and ranks give the same
bits. The whole arithmetic, for one row:

1. Activations. A vector is cut into groups of 128 (the last may be shorter). A group with largest
   magnitude `amax` has the exponent e, the least with amax <= 32639 * 2^e, kept within [low, top];
   its elements become integers a = round(v * 2^-e), ties to even, clipped to +-32639 (two signed
   bytes hold that). What is not finite counts as zero here; `finish_experts` turns the row to NaN.
2. Weights. An MXFP4 element is the integer w = 2 * value, in [-12, 12], and a block of 32 has the
   scale byte s: the element is w * 2^(s - 128). A bank has the window [floor, floor + span] of
   scale bytes; a block below it counts as zeros.
3. Sums. sum over blocks of (sum over the block of a * w) << (e - low + s - floor), in int64; its
   value is that times 2^(low + floor - 128).
4. Gate and up. For x, top = max(-90, largest e of the row) and low = top - depth. Each sum is
   rounded to float32 once, multiplied by its power of two in float64 and rounded to float32.
5. Gated unit. gate in [-128, limit], up in [-limit, limit]; h = gate / (1 + exp(-gate)) * up, then
   times the routing weight, each one float32 operation; exp is `_exp`, fused multiply-adds.
6. Down. For h, [low, top] is the same for all rows and experts: top is the exponent of limit^2 *
   (largest routing weight), a bound of |h|. So the sums of all experts of a row, whoever computes
   them, simply add. At the end they are rounded as in 4.

No sum overflows: |a * w| <= 32639 * 12, a shift is at most `budget` = depth + span, and the budget
is chosen so that terms * 32639 * 12 < 2^(63 - budget), where `terms` counts all products that
can meet in one sum: the hidden size, or topk times the whole intermediate size. The budget is at
most 30, so that a shift is one signed 32-bit factor.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from deskside.formats import e8m0, mxfp4
from deskside.formats.packed import Format, Packed
from deskside.ops.tiles import ROW_TILE

__all__ = ["GROUP", "LARGEST", "Windows", "expert_sums", "finish_experts", "windows_of"]

GROUP = 128
LARGEST = 32639
MOST_WEIGHT = 12
MOST_BUDGET = 30
MOST_SPAN = 14
LEAST_TOP = -90
LEAST_GATE = -128.0

_EXP_TERMS = (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def _alone(bounds: Tensor) -> Tensor:
    """Return the numbers of the only rank."""
    return bounds


@dataclass(frozen=True, slots=True)
class Windows:
    """The exponent windows of one layer, the same on every rank and device.

    `table` is int32 [5]: the floor of gate's and up's scale bytes; the depth of x's window; the
    floor of down's scale bytes; low and top of h's window. A tensor, because it is scanned from
    stored scales and the host need not know it.
    """

    table: Tensor
    limit: float


def windows_of(
    w1: Packed,
    w3: Packed,
    w2: Packed,
    limit: float,
    topk: int,
    most_weight: float,
    ranks: int = 1,
    widest: Callable[[Tensor], Tensor] = _alone,
) -> Windows:
    """Scan the whole banks of a layer for their windows.

    Args:
        w1: gate bank, MXFP4 [experts, intermediate, hidden].
        w3: up bank of the same shape.
        w2: down bank, MXFP4 [experts, hidden, intermediate].
        limit: clamp of the gated unit.
        topk: experts of a row.
        most_weight: the largest routing weight.
        ranks: how many share the intermediate dimension; the banks are one's part.
        widest: returns the largest of all ranks' numbers, int32 [4].
    """
    bounds = widest(torch.cat((_bounds(w1.scales, w3.scales), _bounds(w2.scales))))
    (inner_floor, inner_span), (down_floor, down_span) = _window(bounds[:2]), _window(bounds[2:])
    top = max(_exponent_for(limit * limit * most_weight), LEAST_TOP)
    depth = _budget(w1.columns) - inner_span
    low = top - _budget(topk * ranks * w2.columns) + down_span
    table = torch.stack((inner_floor, depth, down_floor, low, torch.full_like(low, top)))
    return Windows(table, limit)


def _exponent_for(bound: float) -> int:
    """Return the least e with bound <= 32639 * 2^e."""
    mantissa, exponent = math.frexp(bound)
    most, top = math.frexp(LARGEST)
    return exponent - top + (mantissa > most)


def _bounds(*scales: Tensor) -> Tensor:
    """Return the largest scale byte of banks and the smallest one negated, int32 [2]."""
    top = torch.stack([part.amax() for part in scales]).amax().to(torch.int32)
    least = torch.stack([part.amin() for part in scales]).amin().to(torch.int32)
    return torch.stack((top, -least))


def _window(bounds: Tensor) -> tuple[Tensor, Tensor]:
    """Return floor and span of the scale bytes within bounds, 0-dimensional int32."""
    top, least = bounds[0], -bounds[1]
    span = (top - least).clamp(max=MOST_SPAN)
    return top - span, span


def _budget(terms: int) -> int:
    """Return the largest shift with which a sum of `terms` products stays below 2^63."""
    budget = min(MOST_BUDGET, 63 - (terms * LARGEST * MOST_WEIGHT).bit_length())
    assert budget > MOST_SPAN, f"{terms} products in one sum leave no room for exponents"
    return budget


def expert_sums(
    x: Tensor, ids: Tensor, weights: Tensor, w1: Packed, w3: Packed, w2: Packed, windows: Windows
) -> Tensor:
    """Run every row through its experts and add their outputs as integers.

    Sums of calls that shared the experts of a row, or the intermediate dimension in whole groups
    of 128, add up to the sums of one call.

    Args:
        x: [rows, hidden] float32.
        ids: [rows, topk] int64, -1 for an expert handled elsewhere.
        weights: [rows, topk] float32.
        w1: gate bank, MXFP4 [experts, intermediate, hidden].
        w3: up bank of the same shape.
        w2: down bank, MXFP4 [experts, hidden, intermediate].
        windows: of the layer.

    Returns:
        [rows, hidden] int64; `finish_experts` makes numbers of them.
    """
    assert {bank.format for bank in (w1, w3, w2)} == {Format.MXFP4}
    banks = (w1.codes, w1.scales, w3.codes, w3.scales, w2.codes, w2.scales)
    result: Tensor = _expert_sums(x, ids, weights, *banks, windows.table, windows.limit)
    return result


def finish_experts(
    sums: Tensor, windows: Windows, x: Tensor, ids: Tensor, weights: Tensor
) -> Tensor:
    """Round sums [rows, hidden] int64 to float32; NaN where a row's input was not finite.

    `x`, `ids` and `weights` are those of all experts of the row.
    """
    numbers = _rounded(sums, _exponent(windows.table))
    used = torch.where(ids >= 0, weights, 0.0)
    sound = x.isfinite().all(1) & used.isfinite().all(1)
    return torch.where(sound.unsqueeze(1), numbers, torch.nan)


def _exponent(table: Tensor) -> Tensor:
    return table[3] + table[2] - 128


@torch.library.custom_op("deskside::expert_sums", mutates_args=())
def _expert_sums(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_codes: Tensor,
    gate_scales: Tensor,
    up_codes: Tensor,
    up_scales: Tensor,
    down_codes: Tensor,
    down_scales: Tensor,
    table: Tensor,
    limit: float,
) -> Tensor:
    inner_floor, depth, down_floor, low, top = table
    total = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for expert in ids.unique().tolist():
        if expert < 0:
            continue
        all_rows, all_slots = torch.where(ids == expert)
        for rows, slots in zip(all_rows.split(ROW_TILE), all_slots.split(ROW_TILE), strict=True):
            groups = _groups(x[rows])
            tops = _exponents(_largest(groups)).amax(1, keepdim=True).clamp(min=LEAST_TOP)
            vector = _quantize(groups, tops - depth, tops)
            exponent = tops - depth + inner_floor - 128
            gate = _product(vector, gate_codes[expert], gate_scales[expert], inner_floor)
            up = _product(vector, up_codes[expert], up_scales[expert], inner_floor)
            hidden = _gated(_rounded(gate, exponent), _rounded(up, exponent), limit)
            hidden = hidden * weights[rows, slots].unsqueeze(1)
            vector = _quantize(_groups(hidden), low, top)
            sums = _product(vector, down_codes[expert], down_scales[expert], down_floor)
            total.index_add_(0, rows, sums)  # a row may name an expert twice
    return total


@_expert_sums.register_fake
def _(x: Tensor, *_rest: object) -> Tensor:
    return torch.empty_like(x, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class _Vector:
    """Integers as float64 [rows, groups, 128] and how far each group is shifted [rows, groups]."""

    values: Tensor
    shifts: Tensor


def _groups(values: Tensor) -> Tensor:
    """Cut rows [rows, width] into groups [rows, groups, 128], zeros after the end."""
    clean = torch.where(values.isfinite(), values, 0.0)
    whole = pad(clean, (0, -clean.shape[1] % GROUP))
    return whole.view(whole.shape[0], whole.shape[1] // GROUP, GROUP)


def _largest(groups: Tensor) -> Tensor:
    return groups.abs().amax(-1)


def _exponents(amax: Tensor) -> Tensor:
    return e8m0.exponent_for(amax, LARGEST)


def _quantize(groups: Tensor, low: Tensor, top: Tensor) -> _Vector:
    exponents = torch.minimum(torch.maximum(_exponents(_largest(groups)), low), top)
    scaled = groups.double() * _power(-exponents).unsqueeze(-1)
    return _Vector(scaled.clamp(-LARGEST, LARGEST).round(), (exponents - low).long())


def _product(vector: _Vector, codes: Tensor, scales: Tensor, floor: Tensor) -> Tensor:
    """Multiply rows by a matrix [out, in]: int64 sums [rows, out]."""
    rows, columns = vector.values.shape[0], codes.shape[0]
    blocks = scales.shape[1]
    integers = mxfp4.decode(codes, torch.full_like(scales, e8m0.BIAS + 1)).double()
    left = vector.values.reshape(rows, -1, mxfp4.BLOCK)[:, :blocks].transpose(0, 1)
    right = integers.view(columns, blocks, mxfp4.BLOCK).permute(1, 2, 0)
    sums = torch.bmm(left, right).long()  # whole numbers below 2^24: exact in any order
    per_group = GROUP // mxfp4.BLOCK
    vector_shift = vector.shifts.repeat_interleave(per_group, 1)[:, :blocks].t().unsqueeze(2)
    weight_shift = (scales.long() - floor).t().unsqueeze(1)
    shifted = sums << (vector_shift + weight_shift.clamp(min=0))
    return torch.where(weight_shift >= 0, shifted, 0).sum(0)


def _power(exponents: Tensor) -> Tensor:
    """Return 2^e as float64, e in [-1022, 1023]."""
    bits = (exponents.long() + 1023) << 52
    return bits.view(torch.float64)


def _rounded(sums: Tensor, exponent: Tensor) -> Tensor:
    """Return sums * 2^exponent as float32: rounded once, and again only where it is subnormal."""
    return (sums.float().double() * _power(exponent)).float()


def _gated(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    gate = gate.clamp(LEAST_GATE, limit)
    return gate / (1.0 + _exp(-gate)) * up.clamp(-limit, limit)


def _exp(x: Tensor) -> Tensor:
    """Return e^x within 2 ulp for float32; the sequence of operations is the definition."""
    shift = torch.tensor(12582912.0, device=x.device)  # 1.5 * 2^23: adding it rounds to an integer
    x = x.clamp(-105.0, 89.0)
    n = _fused(x, 1.44269504, shift) - shift
    r = _fused(n, -0.693147182, x)
    r = _fused(n, 1.90465421e-9, r)
    p = torch.full_like(x, 1.9875691500e-4)
    for term in _EXP_TERMS:
        p = _fused(p, r, torch.tensor(term, device=x.device))
    p = _fused(p, r * r, r) + 1.0
    half = torch.floor(n * 0.5)
    return p * _power(half).float() * _power(n - half).float()


def _fused(a: Tensor, b: Tensor | float, c: Tensor) -> Tensor:
    """Return a * b + c rounded once to float32.

    The product is exact in float64; the sum is rounded to odd there, which keeps enough of the tail
    for the one rounding that follows.
    """
    product = a.double() * torch.as_tensor(b, dtype=torch.float32).double()
    addend = c.double()
    total = product + addend
    back = total - product
    tail = (product - (total - back)) + (addend - back)
    bits = total.view(torch.int64)
    inexact = (tail != 0) & tail.isfinite() & (bits & 1 == 0)
    away = torch.where((tail > 0) == (total > 0), 1, -1)
    return torch.where(inexact, bits + away, bits).view(torch.float64).float()
