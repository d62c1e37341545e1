"""Every compiled operation against its definition in float64, and the bits of a single row.

One case an operation: arguments that have rows, arguments all rows share, the definition. Four
tests walk the cases, so a new operation is covered by adding one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from deskside.errors import CheckpointError
from deskside.kernels import native
from deskside.kernels.tiers import force_tier, tiers
from deskside.ops import attend, hyper, index, linear, rotary, route

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("_native_defaults")]

ROWS = 129


@dataclass(frozen=True)
class Case:
    """Row arguments by position, shared arguments by position, definition, error allowed."""

    rowed: dict[int, Tensor]
    shared: dict[int, Any]
    definition: Callable[..., Any]
    tolerance: float = 2e-6

    def arguments(self, rows: slice) -> list[Any]:
        taken = {place: value[rows].contiguous() for place, value in self.rowed.items()}
        return [value for _, value in sorted({**taken, **self.shared}.items())]


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def key_index(width: int, keys: int, seed: int) -> Tensor:
    """Ascending key rows, fewer for early rows, absent ones last."""
    source = torch.Generator().manual_seed(seed)
    index = torch.full((ROWS, width), -1, dtype=torch.int32)
    for row in range(ROWS):
        count = min(width, row)
        chosen = torch.randperm(keys, generator=source)[:count].sort().values
        index[row, :count] = chosen.int()
    return index


def attend_case(heads: int, width: int, entries: int) -> Case:
    return Case(
        rowed={
            0: 3 * randn(ROWS, heads, width),
            2: key_index(40, 50, 1),
            4: key_index(entries, 90, 2),
        },
        shared={
            1: randn(50, width, seed=3),
            3: randn(90, width, seed=4),
            5: randn(heads, seed=5),
            6: width**-0.5,
        },
        definition=attend.attend,
    )


def hyper_case(streams: int, width: int) -> Case:
    outputs = streams * (2 + streams)
    return Case(
        rowed={0: randn(ROWS, streams, width)},
        shared={
            1: randn(outputs, streams * width, seed=1) * width**-0.5,
            2: randn(outputs, seed=2),
            3: torch.tensor([0.7, 1.3, 2.1]),
            4: 20,
            5: 1e-6,
            6: 1e-6,
        },
        definition=hyper.hyper_pre,
        tolerance=1e-5,
    )


def index_case(heads: int, width: int) -> Case:
    first = torch.arange(ROWS) % 3 * 40
    return Case(
        rowed={
            0: randn(ROWS, heads, width),
            1: randn(ROWS, heads, seed=1),
            3: first,
            4: torch.arange(ROWS) % 71,
        },
        shared={2: randn(160, width, seed=2), 5: 75},
        definition=index.index_scores,
        tolerance=1e-4,
    )


def scored(columns: int) -> Tensor:
    """Scores with many ties, both zeros, and -inf from some column on."""
    scores = (2 * randn(ROWS, columns)).round()
    hidden = torch.arange(columns) >= torch.arange(ROWS).unsqueeze(1) * 2
    return scores.masked_fill(hidden, -torch.inf)


CASES = {
    "rms_norm": Case({0: 7 * randn(ROWS, 3, 40)}, {1: randn(40, seed=1), 2: 1e-6}, linear.rms_norm),
    "rms_norm bf16": Case(
        {0: randn(ROWS, 100)}, {1: randn(100, seed=1).bfloat16(), 2: 1e-6}, linear.rms_norm
    ),
    "rms_norm none": Case({0: randn(ROWS, 33)}, {1: None, 2: 1e-6}, linear.rms_norm),
    "rope": Case({0: randn(ROWS, 3, 40), 1: randn(ROWS, 2, 16, seed=1)}, {}, rotary.rope),
    "rope inverse": Case(
        {0: randn(ROWS, 40), 1: randn(ROWS, 2, 4, seed=1)}, {2: True}, rotary.rope
    ),
    "swiglu": Case(
        {0: 9 * randn(ROWS, 100), 1: 9 * randn(ROWS, 100, seed=1)}, {2: 10.0}, route.swiglu
    ),
    "hyper_pre": hyper_case(4, 96),
    "hyper_pre odd": hyper_case(3, 41),
    "hyper_head": Case(
        rowed={0: randn(ROWS, 4, 96)},
        shared={1: randn(4, 384), 2: randn(4), 3: torch.tensor([0.8]), 4: 1e-6, 5: 1e-6},
        definition=hyper.hyper_head,
        tolerance=1e-5,
    ),
    "hyper_post": Case(
        rowed={
            0: randn(ROWS, 100),
            1: randn(ROWS, 4, 100, seed=1),
            2: randn(ROWS, 4, seed=2),
            3: randn(ROWS, 4, 4, seed=3),
        },
        shared={},
        definition=hyper.hyper_post,
    ),
    "attend": attend_case(6, 128, 70),
    "attend window": attend_case(17, 72, 0),
    "route": Case({0: 4 * randn(ROWS, 24)}, {1: randn(24, seed=1), 2: 6, 3: 1.5}, route.route),
    "route_hashed": Case(
        {0: 40 * randn(ROWS, 24), 1: torch.arange(ROWS * 6).view(ROWS, 6) % 24},
        {2: 1.5},
        route.route_hashed,
    ),
    "pool": Case(
        {
            0: randn(ROWS, 8, 40),
            1: 5 * randn(ROWS, 8, 40, seed=1),
            2: torch.arange(8) < (torch.arange(ROWS) % 8).unsqueeze(1),
        },
        {},
        attend.pool,
    ),
    "hadamard": Case({0: randn(ROWS, 64)}, {}, index.hadamard),
    "hadamard small": Case({0: randn(ROWS, 2, 8)}, {}, index.hadamard),
    "select": Case({0: scored(200)}, {1: 64}, index.select),
    "select all": Case({0: scored(30)}, {1: 64}, index.select),
    "index_scores": index_case(32, 128),
    "index_scores odd": index_case(5, 24),
}


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def run(name: str, arguments: list[Any]) -> tuple[Tensor, ...]:
    return as_tuple(getattr(native, name.split()[0])(*arguments))


def test_result_is_near_the_definition_in_float64(name):
    case = CASES[name]
    arguments = case.arguments(slice(0, ROWS))
    doubled = [
        a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments
    ]
    for result, exact in zip(
        run(name, arguments), as_tuple(case.definition(*doubled)), strict=True
    ):
        assert result.shape == exact.shape
        if not exact.is_floating_point():
            assert result.equal(exact)
            continue
        assert result.dtype is torch.float32
        assert result.isinf().equal(exact.isinf())
        error = (result.double() - exact).nan_to_num(nan=0).abs()
        scale = exact.abs().nan_to_num(posinf=0, neginf=0).amax(-1, keepdim=True)
        assert (error <= case.tolerance * (scale + 1e-3)).all()


def test_tiers_and_threads_give_the_same_bits(name):
    arguments = CASES[name].arguments(slice(0, ROWS))
    expected = run(name, arguments)
    for tier in tiers().available:
        force_tier(tier)
        for threads in (1, 2, 3):
            native.set_threads(threads)
            for result, wanted in zip(run(name, arguments), expected, strict=True):
                assert result.equal(wanted)


def test_a_row_does_not_depend_on_its_neighbours(name):
    case = CASES[name]
    whole = run(name, case.arguments(slice(0, ROWS)))
    pieces = [slice(i, i + n) for n in (1, 2, 3, 4, 5, 7, 16, 17) for i in (0, 3, ROWS - n)]
    for piece in (*pieces, slice(0, 127), slice(1, 129)):
        for result, wanted in zip(run(name, case.arguments(piece)), whole, strict=True):
            assert result.equal(wanted[piece])


def test_no_rows_give_no_rows(name):
    for result in run(name, CASES[name].arguments(slice(0, 0))):
        assert result.shape[0] == 0


def test_absent_keys_leave_no_trace_wherever_they_stand():
    case = CASES["attend"]
    q, window_keys, window, entry_keys, entries, sink, scale = case.arguments(slice(0, ROWS))
    expected = native.attend(q, window_keys, window, entry_keys, entries, sink, scale)
    absent = torch.full((ROWS, 33), -1, dtype=torch.int32)
    for longer in (torch.cat((window, absent), 1), torch.cat((absent, window), 1)):
        result = native.attend(q, window_keys, longer, entry_keys, entries, sink, scale)
        assert result.equal(expected)
    longer = torch.cat((entries, absent), 1)
    assert native.attend(q, window_keys, window, entry_keys, longer, sink, scale).equal(expected)


def test_no_key_at_all_leaves_the_sink_alone():
    case = CASES["attend"]
    first = case.arguments(slice(0, 1))  # row 0 has no key
    assert run("attend", first)[0].equal(torch.zeros(1, 6, 128))


def test_large_logits_and_sinks_stay_finite():
    q = torch.full((1, 2, 16), 1e4)
    keys = torch.cat((torch.full((1, 16), 1e4), torch.full((1, 16), -1e4)))
    present = torch.tensor([[0, 1]], dtype=torch.int32)
    none = torch.empty((1, 0), dtype=torch.int32)
    sink = torch.tensor([-1e30, 3e38])
    result = native.attend(q, keys, present, keys, none, sink, 1.0)
    assert result[0, 0].equal(keys[0])
    assert result[0, 1].equal(torch.zeros(16))


def test_nan_spreads_through_its_row_alone():
    case = CASES["attend"]
    arguments = case.arguments(slice(0, ROWS))
    clean = run("attend", arguments)[0]
    arguments[0][60, 2, 5] = torch.nan
    result = run("attend", arguments)[0]
    assert result[60, 2].isnan().all()
    result[60, 2] = clean[60, 2]
    assert result.equal(clean)


@pytest.mark.parametrize("tier", tiers().available)
def test_exp_is_within_two_ulp(tier):
    """Seen through the sink: one key with logit 0 has the output 1 / (1 + exp(sink))."""
    force_tier(tier)
    sinks = torch.linspace(-87, 0, 20_001)
    q = torch.zeros(1, len(sinks), 1)
    keys = torch.ones(1, 1)
    present = torch.zeros((1, 1), dtype=torch.int32)
    none = torch.empty((1, 0), dtype=torch.int32)
    result = native.attend(q, keys, present, keys, none, sinks, 1.0).flatten()
    exact = 1 / (1 + sinks.double().exp())
    assert ((result.double() - exact).abs() <= 2.0**-23).all()
    gates = torch.linspace(-103, 30, 50_001)
    silu = native.swiglu(gates, torch.ones_like(gates), 1e9)
    exact = gates.double() / (1 + (-gates.double()).exp())
    relative = ((silu.double() - exact) / exact.where(exact != 0, 1)).abs()
    assert (relative <= 3.5 * 2.0**-23).where(gates > -87, True).all()


def test_values_and_scores_may_share_their_rows():
    case = CASES["pool"]
    values, scores, absent = case.arguments(slice(0, ROWS))
    left, right = torch.cat((values, scores), dim=2).chunk(2, dim=2)
    expected = native.pool(values, scores, absent)
    assert native.pool(left, right, absent).equal(expected)
    assert native.pool(values, right, absent).equal(expected)


def test_routing_survives_nan_and_takes_the_lower_of_equals():
    logits = torch.zeros(3, 8)
    logits[1] = torch.nan
    logits[2, 5] = torch.nan
    ids, weights = native.route(logits, torch.zeros(8), 3, 1.0)
    assert ids.tolist() == [[0, 1, 2], [0, 1, 2], [5, 0, 1]]
    torch.testing.assert_close(weights[0], torch.full((3,), 1 / 3))
    assert weights[1:].isnan().all()
    with pytest.raises(CheckpointError, match="expert 8 of a bank of 8"):
        native.route_hashed(logits, torch.full((3, 2), 8), 1.0)


def test_selection_counts_nan_as_the_largest():
    scores = torch.tensor([[0.0, torch.nan, 5.0, -torch.inf, torch.inf]])
    assert native.select(scores, 2).tolist() == [[1, 4]]
    assert native.select(scores, 5).tolist() == [[0, 1, 2, 4, -1]]


@pytest.mark.parametrize("width", [1, 4, 16, 128])
def test_the_hadamard_transform_has_the_bits_of_its_definition(width):
    x = randn(50, width)
    assert native.hadamard(x).equal(index.hadamard(x))
