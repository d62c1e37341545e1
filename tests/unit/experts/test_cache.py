"""Residency against a plain list: who stays, who leaves, and what an exception leaves behind."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskside.errors import CapacityError
from deskside.experts.cache import ExpertCache

LAYERS = ("layers.0.", "layers.1.", "mtp.0.")
EXPERTS = 6

Steps = list[tuple[str, set[int], set[int], bool, bool]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(LAYERS),
        st.sets(st.integers(0, EXPERTS - 1)),  # needed
        st.sets(st.integers(0, EXPERTS - 1)),  # of these, what is computed in place if it is absent
        st.booleans(),
        st.booleans(),
    ),
    max_size=40,
)


class Model:
    """The same rules on a list, the first to leave first."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.order: list[tuple[str, int]] = []

    def step(
        self, layer: str, hits: Sequence[int], fetches: Sequence[int], recent: bool, fails: bool
    ) -> None:
        hit = [(layer, expert) for expert in hits]
        new = [(layer, expert) for expert in fetches]
        while len(self.order) + len(new) > self.slots:
            self.order.remove(next(key for key in self.order if key not in hit))
        if fails:
            return
        if recent:
            used = sorted(hit + new)
            self.order = [key for key in self.order if key not in used] + used
        else:
            self.order = new + self.order


class Fault(Exception):
    pass


@given(st.integers(EXPERTS, len(LAYERS) * EXPERTS + 1), STEPS)
def test_against_a_list(slots: int, steps: Steps) -> None:
    cache, model = ExpertCache(slots), Model(slots)
    contents: dict[int, tuple[str, int]] = {}
    for layer, needed, here, recent, fails in steps:
        held = cache.held(layer)
        hits = sorted(needed & held.keys())
        fetches = sorted(needed - held.keys() - here)
        try:
            with cache.step(layer, hits, fetches, recent=recent) as filled:
                assert list(filled) == fetches
                assert len({*filled.values(), *(held[e] for e in hits)}) == len(hits) + len(fetches)
                during = cache.held(layer)
                assert all(during[expert] == held[expert] for expert in hits)
                for expert, slot in filled.items():
                    contents[slot] = (layer, expert)
                if fails:
                    raise Fault
        except Fault:
            pass
        model.step(layer, hits, fetches, recent, fails)
        resident = {(of, e): slot for of in LAYERS for e, slot in cache.held(of).items()}
        assert set(resident) == set(model.order)
        assert len(set(resident.values())) == len(resident)
        assert set(resident.values()) <= set(range(slots))
        assert all(contents[slot] == key for key, slot in resident.items())


@given(STEPS)
def test_the_same_steps_give_the_same_slots(steps: Steps) -> None:
    def played() -> list[dict[str, dict[int, int]]]:
        cache, seen = ExpertCache(EXPERTS), []
        for layer, needed, here, recent, _ in steps:
            held = cache.held(layer)
            hits, fetches = needed & held.keys(), sorted(needed - held.keys() - here)
            with cache.step(layer, hits, fetches, recent=recent):
                pass
            seen.append({of: dict(cache.held(of)) for of in LAYERS})
        return seen

    assert played() == played()


def test_a_prompt_pushes_nobody_out_that_comes_back() -> None:
    cache = ExpertCache(4)
    with cache.step("a", [], [0, 1], recent=True):
        pass
    for layer in ("b", "c", "d"):
        with cache.step(layer, [], [4, 5], recent=False):
            pass
    assert set(cache.held("a")) == {0, 1}
    assert set(cache.held("d")) == {4, 5}


def test_a_step_that_needs_more_than_there_is() -> None:
    cache = ExpertCache(3)
    with cache.step("a", [], [0, 1], recent=True):
        pass
    with (
        pytest.raises(CapacityError, match="a: one step needs 4 expert slots, have 3; use"),
        cache.step("a", [0, 1], [2, 3], recent=True),
    ):
        pass
    assert set(cache.held("a")) == {0, 1}
