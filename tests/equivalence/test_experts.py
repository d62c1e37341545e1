"""The hybrid step: where an expert runs changes no bit of a generated row."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deskside.batch import Kinds
from deskside.device import Arrival, Device, HostDevice
from deskside.errors import CapacityError, CheckpointError
from deskside.experts.cache import ExpertCache
from deskside.experts.fetch import ExpertSlots
from deskside.experts.service import ExpertLayer, ExpertService, Residency
from deskside.formats.packed import Format, Packed
from deskside.kernels import native
from deskside.ops.integer_moe import windows_of
from deskside.ops.opset import OpSet
from deskside.planning.split import fewest_slots

EXPERTS, HIDDEN, INNER, TOPK, LIMIT, MOST = 8, 160, 96, 3, 10.0, 1.5
FRACTIONS = (0.0, 0.28, 0.5, 1.0)
NAMES = ("layers.0.ffn.", "layers.1.ffn.", "mtp.0.ffn.")
ALL = len(NAMES) * EXPERTS
NATIVE = OpSet().replaced(native.bodies())


def bank(rows: int, columns: int, draw: torch.Generator) -> Packed:
    codes = torch.randint(0, 256, (EXPERTS, rows, columns // 2), generator=draw)
    scales = torch.randint(119, 124, (EXPERTS, rows, columns // 32), generator=draw)
    return Packed(codes.byte(), scales.byte(), Format.MXFP4)


def layer(name: str, seed: int) -> ExpertLayer:
    draw = torch.Generator().manual_seed(seed)
    shapes = ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
    w1, w3, w2 = (bank(*shape, draw) for shape in shapes)
    return ExpertLayer(name, (w1, w3, w2), windows_of(w1, w3, w2, LIMIT, TOPK, MOST))


LAYERS = [layer(name, seed) for seed, name in enumerate(NAMES)]


@dataclass(frozen=True)
class Rows:
    """Rows of one layer with their routing, and how many of them, the first ones, are prompt."""

    layer: ExpertLayer
    x: Tensor
    ids: Tensor
    weights: Tensor
    prompt: int

    @staticmethod
    def of(layer: ExpertLayer, rows: int, prompt: int, seed: int) -> "Rows":
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, HIDDEN, generator=draw)
        ids = torch.stack([torch.randperm(EXPERTS, generator=draw)[:TOPK] for _ in range(rows)])
        return Rows(layer, x, ids, torch.rand(rows, TOPK, generator=draw) + 0.1, prompt)

    def run(self, service: ExpertService) -> Tensor:
        kinds = Kinds.of(np.arange(self.x.shape[0]) >= self.prompt)
        none = torch.zeros_like(self.x)
        return service.run(self.layer, self.x, self.ids, self.weights, kinds, none)


def hybrid(
    slots: int, fraction: float, device: Device | None = None, ops: OpSet = NATIVE
) -> tuple[ExpertService, ExpertCache]:
    room = ExpertSlots.allocate(device or HostDevice(), LAYERS[0].banks, slots)
    for one in room.banks:  # what is read too early is seen
        one.codes.fill_(0x77)
        one.scales.fill_(120)
    cache = ExpertCache(slots)
    return ExpertService(ops, Residency(room, cache, fraction)), cache


def assert_resident(service: ExpertService, cache: ExpertCache) -> None:
    """Every slot holds the bytes of the expert that is said to lie there."""
    assert service._residency is not None
    for one in LAYERS:
        for expert, slot in cache.held(one.name).items():
            for ours, theirs in zip(service._residency.slots.banks, one.banks, strict=True):
                assert ours.codes[slot].equal(theirs.codes[expert])
                assert ours.scales[slot].equal(theirs.scales[expert])


STEPS = st.lists(
    st.tuples(st.integers(0, len(NAMES) - 1), st.integers(1, 5), st.integers(0, 2**20)),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("fraction", FRACTIONS)
@given(slots=st.integers(EXPERTS, ALL), steps=STEPS)
@settings(max_examples=25)
def test_generated_rows_are_equal_anywhere(
    fraction: float, slots: int, steps: list[tuple[int, int, int]]
) -> None:
    """Any slot count from the least to all, any mix of hits and misses, the drafter's layer too."""
    service, cache = hybrid(slots, fraction)
    for number, rows, seed in steps:
        step = Rows.of(LAYERS[number], rows, 0, seed)
        assert step.run(service).equal(step.run(ExpertService(NATIVE)))
    assert_resident(service, cache)


@pytest.mark.parametrize("slots", range(EXPERTS, ALL + 1))
def test_every_slot_count(slots: int) -> None:
    for fraction in FRACTIONS:
        service, cache = hybrid(slots, fraction)
        for turn in range(6):
            step = Rows.of(LAYERS[turn % 3], 2, 0, turn)
            assert step.run(service).equal(step.run(ExpertService(NATIVE)))
        assert_resident(service, cache)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("fraction", FRACTIONS)
def test_the_fewest_slots_are_enough(rows: int, fraction: float) -> None:
    """No layer's experts fit whole; every step still has what it needs."""
    service, cache = hybrid(fewest_slots(EXPERTS, TOPK, rows), fraction)
    for turn in range(30):
        step = Rows.of(LAYERS[turn % 3], rows, 0, turn)
        assert step.run(service).equal(step.run(ExpertService(NATIVE)))
        assert_resident(service, cache)


def test_the_plain_bodies_take_part() -> None:
    step = Rows.of(LAYERS[1], 5, 2, 0)
    service, _ = hybrid(EXPERTS, 0.5, ops=OpSet())
    expected = step.run(ExpertService(OpSet()))
    for _ in range(2):
        found = step.run(service)
        assert found[2:].equal(expected[2:])
        torch.testing.assert_close(found[:2], expected[:2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_prompt_rows_have_a_small_error_and_no_history(fraction: float) -> None:
    """Their bits may depend on the fraction; not on residency, company or what ran before."""
    step = Rows.of(LAYERS[0], 24, 24, 1)
    first = step.run(hybrid(EXPERTS, fraction)[0])
    torch.testing.assert_close(first, step.run(ExpertService(NATIVE)), rtol=1e-5, atol=2e-6)
    for slots in (EXPERTS, EXPERTS + 3, ALL):
        service, cache = hybrid(slots, fraction)
        for turn in range(7):
            before = Rows.of(LAYERS[turn % 3], 1 + turn, turn % 2, turn)
            before.run(service)
            assert step.run(service).equal(first)
        for row in range(24):
            alone = replace(
                step,
                x=step.x[row : row + 1],
                ids=step.ids[row : row + 1],
                weights=step.weights[row : row + 1],
            )
            assert alone.run(service).equal(first[row : row + 1])
        assert_resident(service, cache)


def test_both_kinds_in_one_step() -> None:
    service, _ = hybrid(ALL, 0.5)
    step = Rows.of(LAYERS[0], 9, 4, 2)
    found = step.run(service)
    assert found[4:].equal(step.run(ExpertService(NATIVE))[4:])
    assert found[:4].equal(replace(step, prompt=9).run(hybrid(EXPERTS, 0.5)[0])[:4])


def test_what_is_not_finite_stays_in_its_row() -> None:
    step = Rows.of(LAYERS[0], 3, 0, 3)
    step.x[1, 5] = torch.nan
    found = step.run(hybrid(EXPERTS, 0.5)[0])
    assert found[1].isnan().all()
    assert found[[0, 2]].equal(step.run(ExpertService(NATIVE))[[0, 2]])


def test_an_expert_that_does_not_exist() -> None:
    step = Rows.of(LAYERS[0], 2, 0, 3)
    for service in (hybrid(ALL, 0.5)[0], ExpertService(NATIVE)):
        step.ids[1, 1] = EXPERTS
        with pytest.raises(CheckpointError):
            step.run(service)
        step.ids[1, 1] = 0
        step.run(service)


def test_fewer_slots_than_a_step_needs() -> None:
    step = Rows.of(LAYERS[0], 8, 0, 4)
    with pytest.raises(CapacityError, match="needs 8 expert slots, have 7"):
        step.run(hybrid(7, 1.0)[0])


@dataclass
class Late:
    """A side that does nothing until it is waited for, and then fails if it is to."""

    fails: Callable[[int], bool] = lambda _turn: False
    given: int = 0
    turns: list[int] = field(default_factory=list)

    @property
    def memory(self) -> torch.device:
        return torch.device("cpu")

    def aside(self, work: Callable[[], None]) -> Arrival:
        side, done = self, []
        self.given += 1

        class Waiting:
            def wait(self) -> None:
                if done:
                    return
                done.append(True)
                side.turns.append(len(side.turns))
                if side.fails(len(side.turns)):
                    raise OSError("no copy")
                work()

        return Waiting()


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_nothing_is_read_before_it_has_arrived(fraction: float) -> None:
    service, cache = hybrid(EXPERTS + 1, fraction, Late())
    for turn in range(12):
        step = Rows.of(LAYERS[turn % 3], 3, turn % 3, turn)
        found, expected = step.run(service), step.run(ExpertService(NATIVE))
        assert found[step.prompt :].equal(expected[step.prompt :])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    assert_resident(service, cache)


def test_both_paths_are_under_way_together() -> None:
    """The copy waits for the CPU to have begun, and the CPU for the copy."""
    begun = {name: threading.Event() for name in ("copy", "cpu")}
    seen: list[bool] = []

    class Meeting(HostDevice):
        def aside(self, work: Callable[[], None]) -> Arrival:
            def meet() -> None:
                begun["copy"].set()
                seen.append(begun["cpu"].wait(30))
                work()

            return super().aside(meet)

    def sums(x: Tensor, ids: Tensor, *rest: object) -> Tensor:
        begun["cpu"].set()
        seen.append(begun["copy"].wait(30))
        return NATIVE.expert_sums(x, ids, *rest)

    service, _ = hybrid(EXPERTS, 0.5, Meeting(), replace(NATIVE, expert_sums=sums))
    step = Rows.of(LAYERS[0], 4, 0, 6)
    assert step.run(service).equal(step.run(ExpertService(NATIVE)))
    assert all(seen)


def test_a_failed_fetch_leaves_the_cache_as_good_as_new() -> None:
    device = Late(fails=lambda turn: turn % 3 == 0)
    service, cache = hybrid(EXPERTS + 2, 1.0, device)
    failures = 0
    for turn in range(40):
        step = Rows.of(LAYERS[turn % 3], 2, 0, turn)
        try:
            found = step.run(service)
        except OSError:
            failures += 1
        else:
            assert found.equal(step.run(ExpertService(NATIVE)))
        assert_resident(service, cache)
    assert failures > 5


@pytest.mark.parametrize("device", [HostDevice(), Late()])
def test_a_failed_computation_leaves_no_copy_behind(device: HostDevice | Late) -> None:
    """The fault comes while a fetch is under way."""

    def failing(*_: object) -> Tensor:
        raise ZeroDivisionError

    service, cache = hybrid(EXPERTS, 0.5, device)
    step = Rows.of(LAYERS[0], 4, 0, 5)
    broken = ExpertService(replace(NATIVE, expert_sums=failing), service._residency)
    for turn in range(10):
        with pytest.raises(ZeroDivisionError):
            Rows.of(LAYERS[turn % 3], 4, 0, turn).run(broken)
        assert isinstance(device, HostDevice) or len(device.turns) == device.given
        assert step.run(service).equal(step.run(ExpertService(NATIVE)))
        assert_resident(service, cache)


def test_two_faults_are_told_as_one() -> None:
    def failing(*_: object) -> Tensor:
        raise ZeroDivisionError

    service, _ = hybrid(EXPERTS, 1.0, Late(fails=lambda _turn: True))
    broken = ExpertService(replace(NATIVE, expert_sums=failing), service._residency)
    with pytest.raises(ZeroDivisionError) as caught:
        Rows.of(LAYERS[0], 4, 0, 5).run(broken)
    assert caught.value.__notes__ == ["and a fetch failed: OSError('no copy')"]
