"""A fault at any point of a step: nothing changed, one request is lost, nothing leaks.

A bomb raises inside a step that holds rows of a certain request. The points go through a step in
its order: draft, reserve, forward, the drafter's context, acceptance, stop rules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deskside.core import FinishReason, SequenceId, Span
from deskside.engine.engine import Engine
from deskside.engine.inputs import BatchBuilder
from deskside.engine.speculation import Speculator
from deskside.errors import DesksideError
from deskside.llm import LLM, Result, _Progress
from deskside.model.block import Block, Head
from deskside.model.drafter import Drafter, Features
from deskside.speculate.policy import Policy
from deskside.speculate.proposal import Proposer
from deskside.speculate.stop import StopRule
from deskside.state.context import DraftContext
from deskside.state.pages import PageTable
from deskside.state.rings import Rings
from deskside.state.tokens import TokenStore
from tests.equivalence.test_engine import VOCAB, alone, opened, params, same, write_tokenizer
from tests.miniature import write_miniature

POINTS: dict[str, tuple[type, str]] = {
    "propose": (Speculator, "propose"),
    "draft": (Drafter, "draft"),
    "draw": (Proposer, "propose"),
    "reserve tokens": (TokenStore, "reserve"),
    "reserve pages": (PageTable, "reserve"),
    "reserve rings": (Rings, "reserve"),
    "ids": (TokenStore, "rows"),
    "build": (BatchBuilder, "build"),
    "layer": (Block, "forward"),
    "features": (Features, "__call__"),
    "head": (Head, "logits"),
    "context": (Drafter, "context"),
    "stage": (DraftContext, "stage"),
    "law": (Policy, "adjust"),
    "stop": (StopRule, "cut"),
}
PROMPTS = ["x" * 121, "def f(x):", "y" * 250]
VICTIM = 1
SAMPLING = params(temperature=0.8, max_tokens=14, frequency_penalty=0.2)


class Boom(Exception):
    """What a forward might raise."""


class Stop(BaseException):
    """What a signal raises."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafting")
    write_miniature(folder, vocab=VOCAB, seed=4, drafter=True)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return opened(
        folder, speculation=3, fallback_rule="fixed", fallback_min_drafted=9, fallback_steps=2
    )


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[Result]:
    return llm.generate(PROMPTS, SAMPLING)


@dataclass
class Bomb:
    """Raises at a point, in steps of one request, after some calls of the point in such steps."""

    fault: type[BaseException]
    victim: Callable[[SequenceId], bool]
    calls: int = 0
    """Calls that go well."""
    once: bool = False
    running: Sequence[Span] = field(default=(), init=False)
    raised: int = field(default=0, init=False)

    def arm(self, patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        own_run, own_point = Engine._run, getattr(owner, name)

        def run(engine: Engine, step: int, spans: Sequence[Span]) -> Any:
            self.running = spans
            try:
                return own_run(engine, step, spans)
            finally:
                self.running = ()

        def point(*args: Any, **kwargs: Any) -> Any:
            if any(self.victim(span.sequence) for span in self.running):
                self.calls -= 1
                if self.calls < 0 and not (self.once and self.raised):
                    self.raised += 1
                    raise self.fault("the test's own")
            return own_point(*args, **kwargs)

        patch.setattr(Engine, "_run", run)
        patch.setattr(owner, name, point)


def held(llm: LLM) -> tuple[object, ...]:
    """Return what must be as before when a step fails or a request ends."""
    engine = llm._runtime.engine
    owners, speculator = engine._owners, engine._speculation
    assert isinstance(speculator, Speculator)
    records = {
        sequence: (repr(record.averages), vars_of(record.controller))
        for sequence, record in speculator._records.items()
        if record.averages.values() != [record.averages.prior] * record.averages.block
        or record.controller._verified
    }
    return (
        owners.pages.free,
        owners.rings.free,
        {sequence: list(table) for sequence, table in owners.pages._tables.items()},
        dict(owners.rings._slots),
        dict(owners.rings._places),
        dict(owners.tokens._frontier),
        {sequence: tuple(known) for sequence, known in owners.tokens._known.items()},
        {sequence: live.stop.left for sequence, live in engine._live.items()},
        records,
    )


def vars_of(thing: object) -> dict[str, object]:
    return dict(vars(thing))


def held_before_stop(llm: LLM, sequence: SequenceId, progress: _Progress) -> tuple[object, ...]:
    """Step until a step raises, which may be late where drafting is paused."""
    while True:
        inside = held(llm)
        try:
            outputs = llm._step()
        except Stop:
            return inside
        progress.take(outputs[sequence])


@pytest.mark.parametrize("calls", [0, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_fault_costs_one_request(
    llm: LLM, expected: list[Result], monkeypatch: pytest.MonkeyPatch, point: str, calls: int
) -> None:
    before = held(llm)
    first = llm._runtime.scheduler._next_sequence
    bomb = Bomb(Boom, lambda sequence: sequence == first + VICTIM, calls)
    bomb.arm(monkeypatch, *POINTS[point])
    results = llm.generate(PROMPTS, SAMPLING)
    assert held(llm) == before
    assert bomb.raised >= 2, "in company, and alone"
    for place, (result, whole) in enumerate(zip(results, expected, strict=True)):
        if place != VICTIM:
            assert same(result, whole)
    lost = results[VICTIM]
    assert lost.finish is FinishReason.ERROR
    assert lost.fault == "Boom: the test's own"
    assert lost.token_ids == expected[VICTIM].token_ids[: len(lost.token_ids)]


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_that_passes_costs_nothing(
    llm: LLM, expected: list[Result], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """As when memory was short for all and suffices for each."""
    first = llm._runtime.scheduler._next_sequence
    bomb = Bomb(Boom, lambda sequence: sequence == first + VICTIM, calls=3, once=True)
    bomb.arm(monkeypatch, *POINTS[point])
    results = llm.generate(PROMPTS, SAMPLING)
    assert bomb.raised == 1
    assert all(same(a, b) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("point", POINTS)
def test_a_signal_in_a_step_changes_nothing(
    llm: LLM, expected: list[Result], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The step can be run again, and the text is the same."""
    before = held(llm)
    sequence, progress = llm._submit(PROMPTS[0], SAMPLING)
    for _ in range(4):
        progress.take(llm._step()[sequence])
    bomb = Bomb(Stop, lambda other: other == sequence)
    with monkeypatch.context() as patch:
        bomb.arm(patch, *POINTS[point])
        inside = held_before_stop(llm, sequence, progress)
        assert held(llm) == inside
    while progress.finish is None:
        progress.take(llm._step()[sequence])
    assert same(progress.result(), expected[0])
    assert held(llm) == before


@pytest.mark.parametrize("steps", range(1, 8))
def test_leaving_after_any_number_of_steps_leaves_nothing(llm: LLM, steps: int) -> None:
    before = held(llm)
    stream = llm.stream(PROMPTS[2], SAMPLING)
    for _ in range(steps):
        next(stream)
    stream.close()
    assert held(llm) == before


def test_a_reader_of_one_text_is_told_in_one_line(
    llm: LLM, expected: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = Bomb(Boom, lambda _sequence: True, calls=25)
    with monkeypatch.context() as patch:
        bomb.arm(patch, Block, "forward")
        with pytest.raises(DesksideError, match=r"^internal fault: Boom: the test's own$"):
            alone(llm, PROMPTS[0], SAMPLING)
    assert same(alone(llm, PROMPTS[0], SAMPLING), expected[0])
