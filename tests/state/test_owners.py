"""All owners at once: random reserve, commit and release against a replay of kept rows alone.

Two sets of owners live side by side. One takes spans with proposals that are partly rejected,
aborts and failures; the other takes only the rows that stayed, one by one. What can be read must
be equal bit for bit. A new owner is covered by adding it to `Owners`.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from torch import Tensor

from deskside.core import SequenceId, Span
from deskside.engine.inputs import BatchBuilder
from deskside.engine.owners import Owners
from deskside.errors import CapacityError
from deskside.layout.kv import BORDERS, KvFormat, pages_for
from deskside.spec import DrafterSpec, ModelSpec
from deskside.state.context import DraftContext
from deskside.state.kv import KvState, Ring
from deskside.text.guide import Guide
from tests.oracle.peer import TINY

PAGES = 6
SLOTS = 3
LIMIT = 320
TINY_SPEC = replace(
    ModelSpec.from_config(TINY),
    drafter=DrafterSpec(block=5, markov_rank=8, noise_token=2, target_layers=(1, 4), stages=2),
)


def content(token: int, position: int, width: int) -> Tensor:
    """Make up the row that a token at a position leaves behind."""
    return torch.arange(width) * 0.5 + token * 7 + position * 1000


def recent(end: int, ring: Ring, opened: int = 0) -> list[int]:
    """Return where a ring holds the last rows before a frontier, from a position on."""
    return [p % ring.length for p in range(max(opened, end - ring.length), end)]


class Recorder(Guide):
    """A guide of a text that may go on in any way, whose mask spells all that was taken."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.settled = 0

    def allowed(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        return np.array([bit == "1" for token in self.taken for bit in f"{token:04b}"], bool)

    def take(self, token: int) -> bool:
        self.taken.append(token)
        return True

    def give_back(self, count: int) -> None:
        assert count <= len(self.taken) - self.settled
        del self.taken[len(self.taken) - count :]

    def settle(self) -> None:
        self.settled = len(self.taken)


@dataclass
class World:
    """State, owners and a stand-in for a forward that writes made-up rows."""

    spec: ModelSpec
    pages: int = PAGES
    snapshots: int = 0
    whole: bool = True
    state: KvState = field(init=False)

    def __post_init__(self) -> None:
        kv_format, pages, borders = KvFormat.FLOAT32, self.pages, BORDERS if self.snapshots else 0
        self.state = KvState.allocate(self.spec, kv_format, pages, SLOTS, borders=borders)
        self.context = DraftContext.allocate(self.spec, kv_format, SLOTS, borders=borders)
        self.owners = Owners.allocate(
            self.state,
            pages,
            SLOTS,
            [self.context.group],
            snapshots=self.snapshots,
            whole=self.whole,
        )
        self.ledger = self.owners.ledger()
        self.builder = BatchBuilder(self.spec, self.owners.pages, self.owners.rings)

    def write(self, spans: list[Span], ids: list[int]) -> None:
        """Leave rows in staging and entries in pages, as a forward does, and ask for masks."""
        batch = self.builder.build(spans, ids)
        first = 0
        for span in spans:
            if self.owners.grammars.holds(span.sequence):
                self.owners.grammars.masks(span, ids[first : first + span.rows])
            first += span.rows
        positions = batch.positions.tolist()

        def rows(width: int) -> Tensor:
            return torch.stack([content(*at, width) for at in zip(ids, positions, strict=True)])

        def stage(ring: Ring | None) -> Tensor | None:
            if ring is None:
                return None
            own = rows(ring.storage.shape[2])
            return ring.extend(own, batch.slots, batch.stage[ring.length])

        last = rows(self.spec.head_dim)[batch.stage[self.spec.window]]
        self.context.stage([last + number for number, _ in enumerate(self.context.stages)])

        for layer, ratio in zip(self.state.layers, self.spec.ratios, strict=True):
            stage(layer.window)
            for raw, pool in (
                (stage(layer.carry), layer.entries),
                (stage(layer.index_carry), layer.index_keys),
            ):
                if raw is not None and pool is not None and ratio in batch.emissions:
                    new = batch.emissions[ratio]
                    pooled = raw[new.source].double().masked_fill(new.absent.unsqueeze(2), 0)
                    pool.write(new.target, pooled.sum(1).float()[:, : pool.storage.shape[1]])

    def visible(self, sequence: SequenceId) -> list[Tensor]:
        """Everything of a sequence that a later forward may read.

        Of a compressor's rings that is the open window, and the one before it where they overlap.
        """
        end = self.owners.tokens.frontier(sequence)
        seen: list[Tensor] = []
        if self.owners.grammars.holds(sequence):
            mask = self.owners.grammars.allowed(sequence, ())
            assert mask is not None
            seen.append(mask)
        if end == 0:
            return seen
        slot = self.owners.rings.slot(sequence)
        table = torch.tensor([self.owners.pages.table(sequence)])
        seen += [ring.storage[slot, recent(end, ring)] for ring in self.context.stages]
        for layer, ratio in zip(self.state.layers, self.spec.ratios, strict=True):
            seen.append(layer.window.storage[slot, recent(end, layer.window)])
            for ring in (r for r in (layer.carry, layer.index_carry) if r is not None):
                opened = max(0, end // ratio * ratio - (ring.length - ratio))
                seen.append(ring.storage[slot, recent(end, ring, opened)])
            pools = (pool for pool in (layer.entries, layer.index_keys) if pool is not None)
            seen += [pool.read(table)[: end // ratio] for pool in pools]
        return seen


class OwnersMachine(RuleBasedStateMachine):
    """Random steps over a few sequences."""

    def __init__(self) -> None:
        super().__init__()
        spec = TINY_SPEC
        self.busy = World(spec)
        self.plain = World(spec)
        self.live: dict[SequenceId, list[int]] = {}
        self.next = 0

    @rule()
    def admit(self) -> None:
        if len(self.live) < SLOTS + 1:
            sequence = SequenceId(self.next)
            self.next += 1
            self.live[sequence] = []
            for world in (self.busy, self.plain):
                world.owners.tokens.admit(sequence, ())
                world.owners.grammars.admit(sequence, 0, Recorder())

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        spans, ids, kept = [], [], []
        for sequence in data.draw(st.lists(st.sampled_from([*self.live] or [None]), unique=True)):
            if sequence is None:
                continue
            start = len(self.live[sequence])
            certain = data.draw(st.sampled_from([1, 2, 3, 7, 64, 127, 128, 129, 200]))
            certain = min(certain, LIMIT - start)
            if certain < 1:
                continue
            proposals = data.draw(st.integers(0, 6))
            salt = data.draw(st.integers(0, 9))
            tokens = [(salt + place * place) % 10 for place in range(certain + proposals)]
            stay = data.draw(st.one_of(st.just(0), st.integers(certain, certain + proposals)))
            spans.append(Span(sequence, start, certain, proposals))
            ids.append(tokens)
            kept.append(stay)
        self._run(spans, ids, kept, aborted=data.draw(st.booleans()) and data.draw(st.booleans()))

    def _run(self, spans: list[Span], ids: list[list[int]], kept: list[int], aborted: bool) -> None:
        if not spans:
            return
        for span, tokens in zip(spans, ids, strict=True):
            self._know(self.busy, span.sequence, span.start, tokens)
            self.busy.owners.grammars.allowed(span.sequence, tokens[1:4])  # a draft thrown away
        free = self.busy.owners.pages.free, self.busy.owners.rings.free
        try:
            with self.busy.ledger.open(spans) as transaction:
                self.busy.write(spans, [token for tokens in ids for token in tokens])
                if aborted:
                    raise InterruptedError
                transaction.commit(kept)
        except (CapacityError, InterruptedError):
            assert (self.busy.owners.pages.free, self.busy.owners.rings.free) == free
            return
        for span, tokens, stay in zip(spans, ids, kept, strict=True):
            self.live[span.sequence] += tokens[:stay]
            self._replay(span, tokens[:stay])

    def _replay(self, span: Span, tokens: list[int]) -> None:
        for offset, token in enumerate(tokens):
            self._know(self.plain, span.sequence, span.start + offset, [token])
            single = Span(span.sequence, span.start + offset, 1)
            with self.plain.ledger.open([single]) as transaction:
                self.plain.write([single], [token])
                transaction.commit([1])

    @staticmethod
    def _know(world: World, sequence: SequenceId, start: int, tokens: list[int]) -> None:
        known = len(world.owners.tokens.known(sequence))
        world.owners.tokens.emit(sequence, tokens[max(0, known - start) :])

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.live:
            sequence = data.draw(st.sampled_from([*self.live]))
            del self.live[sequence]
            for world in (self.busy, self.plain):
                world.ledger.release(sequence)
                world.ledger.release(sequence)

    @invariant()
    def equal(self) -> None:
        for sequence, tokens in self.live.items():
            for world in (self.busy, self.plain):
                assert world.owners.tokens.frontier(sequence) == len(tokens)
            ours, theirs = self.busy.visible(sequence), self.plain.visible(sequence)
            assert len(ours) == len(theirs)
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))

    @invariant()
    def nothing_is_lost(self) -> None:
        held = sum(pages_for(len(tokens)) for tokens in self.live.values())
        assert self.busy.owners.pages.free == PAGES - held


TestOwners = OwnersMachine.TestCase
TestOwners.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_ring_slots_run_out_in_one_line() -> None:
    world = World(TINY_SPEC)
    for number in range(SLOTS + 1):
        world.owners.tokens.admit(SequenceId(number), [1])
    spans = [Span(SequenceId(number), 0, 1) for number in range(SLOTS + 1)]
    with pytest.raises(CapacityError, match="--max-running"), world.ledger.open(spans):
        pass
    assert world.owners.rings.free == SLOTS
