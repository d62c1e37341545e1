"""Prefixes that are taken up again, against a cache of a few lines and against rows from the start.

One random driver lets sequences enter, run in chunks and blocks, fail and leave, under so few pages
and places that both are taken back all the time. The plain cache knows prefixes as tuples of tokens
and says at every step what must be found; what a sequence can read must be what the same tokens
leave when they are computed whole.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
import torch

from deskside.core import SequenceId, Span
from deskside.layout.kv import BORDERS, PAGE, pages_for
from deskside.state import prefixes
from tests.state.test_owners import SLOTS, TINY_SPEC, World

PAGES = 9
PLACES = 4
STRIDE = 2 * PAGE
LONGEST = 5 * PAGE

Tokens = tuple[int, ...]


@dataclass
class Run:
    """A sequence as the driver knows it."""

    prompt: Tokens
    limit: int
    rows: Tokens = ()
    known: Tokens = ()
    shared: int = 0
    marks: set[int] = field(default_factory=set)
    last: Tokens | None = None
    pending: list[int] = field(default_factory=list)


@dataclass
class Plain:
    """The reference cache: prefixes by their tokens."""

    whole: bool
    pages: dict[Tokens, list[int]] = field(default_factory=dict)
    """By prefix: sequences that hold its last page, and when one of them left."""
    snapshots: OrderedDict[Tokens, None] = field(default_factory=OrderedDict)
    pending: int = 0
    clock: int = 0

    def known(self, tokens: Tokens) -> int:
        return next(
            n
            for n in range(len(tokens) // PAGE, -1, -1)
            if n == 0 or tokens[: n * PAGE] in self.pages
        )

    def resumable(self, tokens: Tokens) -> int:
        most = self.known(tokens[:-1]) * PAGE
        return max(
            (b for b in range(PAGE, most + 1, PAGE) if tokens[:b] in self.snapshots), default=0
        )

    def admit(self, run: Run) -> int:
        run.marks = {(len(run.prompt) - 1) // PAGE * PAGE, len(run.prompt) // PAGE * PAGE}
        run.marks.add(self.known(run.prompt) * PAGE)
        reused = self.resumable(run.prompt)
        for border in range(PAGE, reused + 1, PAGE):
            self.pages[run.prompt[:border]][0] += 1
        if reused:
            self.snapshots.move_to_end(run.prompt[:reused])
        run.shared = reused // PAGE
        return reused

    def make_room(self, pages: int) -> None:
        for _ in range(pages):
            ends = [
                p for p, (users, _) in self.pages.items() if not users and not self._extended(p)
            ]
            gone = min(ends, key=lambda p: (self.pages[p][1], -len(p)))
            del self.pages[gone]
            self.snapshots.pop(gone, None)

    def _extended(self, prefix: Tokens) -> bool:
        return any(len(p) > len(prefix) and p[: len(prefix)] == prefix for p in self.pages)

    def wanted(self, run: Run, span: Span) -> list[int]:
        inside = range(span.start // PAGE * PAGE + PAGE, span.end + 1, PAGE)
        prompt = len(run.prompt)
        return [
            b
            for b in inside
            if (b <= prompt and (b in run.marks or b % STRIDE == 0)) or (b > prompt and self.whole)
        ][-BORDERS:]

    def commit(self, run: Run, borders: Sequence[int]) -> None:
        for border in borders:
            if len(self.snapshots) + self.pending == PLACES:
                if not self.snapshots:
                    continue
                self.snapshots.popitem(last=False)
            self.pending += 1
            run.pending.append(border)

    def settle(self, run: Run) -> None:
        most = len(run.rows) if self.whole else min(len(run.rows), len(run.prompt))
        for border in range((run.shared + 1) * PAGE, most + 1, PAGE):
            self.pages.setdefault(run.rows[:border], [0, 0])[0] += 1
            run.shared += 1
        for border in run.pending:
            self.pending -= 1
            if run.rows[:border] in self.snapshots:
                continue
            self.snapshots[run.rows[:border]] = None
            if border > len(run.prompt) and border % STRIDE:
                self.snapshots.pop(run.last, None)
                run.last = run.rows[:border]
        run.pending.clear()

    def leave(self, run: Run) -> None:
        self.clock += 1
        for count in range(1, run.shared + 1):
            page = self.pages[run.rows[: count * PAGE]]
            page[0], page[1] = page[0] - 1, self.clock


@dataclass
class Driver:
    """Random steps over a world with a cache, the plain cache beside it."""

    draw: Random
    whole: bool
    live: dict[SequenceId, Run] = field(default_factory=dict)
    next: int = 0
    hits: int = 0

    def __post_init__(self) -> None:
        self.world = World(TINY_SPEC, PAGES, PLACES, self.whole)
        self.judge = World(TINY_SPEC, PAGES)
        self.plain = Plain(self.whole)
        self.texts = [tuple(self.draw.randrange(10) for _ in range(LONGEST)) for _ in range(3)]

    def prompt(self) -> Tokens:
        """Return the beginning of a text, of a sequence that ran, or of one and then another."""
        text = self.draw.choice(self.texts)
        border = self.draw.randint(1, LONGEST // PAGE - 1) * PAGE
        length = self.draw.choice([border - 1, border, border + 1, self.draw.randint(1, 500)])
        tail = self.draw.choice([(), (7,), tuple(self.draw.choices(range(10), k=40))])
        return (text[:length] + tail)[: LONGEST - 20]

    def admit(self) -> None:
        prompt = self.prompt()
        limit = min(LONGEST, len(prompt) + self.draw.choice([1, 20, 200]))
        aside = sum(pages_for(run.limit) for run in self.live.values())
        if len(self.live) == SLOTS or aside + pages_for(limit) > PAGES:
            return
        run = Run(prompt, limit, known=prompt)
        reused = self.world.owners.prefixes.resumable(prompt)
        assert reused == self.plain.admit(run)
        self.hits += reused > 0
        sequence = SequenceId(self.next)
        self.next += 1
        self.world.owners.admit(sequence, prompt, reused)
        run.rows = prompt[:reused]
        self.live[sequence] = run

    def span(self, sequence: SequenceId, run: Run) -> tuple[Span, Tokens] | None:
        """Return a chunk of the prompt, or an anchor and its proposals."""
        start = len(run.rows)
        if start < len(run.prompt):
            left = len(run.prompt) - start
            chunk = min(left, self.draw.choice([3, PAGE - 1, PAGE, PAGE + 1, 300, 600]))
            span = Span(sequence, start, chunk, 0, chunk == left)
            return span, run.prompt[start : start + chunk]
        room = run.limit - start - 1
        if room < 1:
            return None
        proposed = tuple(self.draw.choices(range(10), k=min(self.draw.randint(0, 6), room - 1)))
        return Span(sequence, start, 1, len(proposed)), (*run.known[start:], *proposed)

    def step(self) -> None:
        chosen = self.draw.sample([*self.live], self.draw.randint(0, len(self.live)))
        parts = [(self.live[name], self.span(name, self.live[name])) for name in chosen]
        runs = [run for run, part in parts if part]
        spans = [part[0] for _, part in parts if part]
        ids = [part[1] for _, part in parts if part]
        if not spans:
            return
        self._make_room(spans)
        borders = self._borders(runs, spans)
        fails = self.draw.random() < 0.1
        kept = [span.certain + self.draw.randint(0, span.proposals) for span in spans]
        with self.world.ledger.open(spans) as transaction:
            self.world.write(spans, [token for tokens in ids for token in tokens])
            if fails:
                return
            transaction.commit(kept)
        for run, span, stay, found in zip(runs, spans, kept, borders, strict=True):
            self.plain.commit(run, [b for b in found if b <= span.start + stay])
        lost = self.draw.random() < 0.1
        for run, span, tokens, stay in zip(runs, spans, ids, kept, strict=True):
            run.rows += tokens[:stay]
            if lost:
                self._leave(span.sequence)
                continue
            drawn = (self.draw.randrange(10),) if span.samples else ()
            emitted = (*tokens[span.certain : stay], *drawn)
            run.known += emitted
            self.world.owners.emit(span.sequence, emitted)
            self.plain.settle(run)

    def _make_room(self, spans: Sequence[Span]) -> None:
        held = sum(pages_for(len(run.rows)) - run.shared for run in self.live.values())
        new = sum(pages_for(s.end) - pages_for(s.start) for s in spans)
        self.plain.make_room(max(0, new - (PAGES - held - len(self.plain.pages))))

    def _borders(self, runs: Sequence[Run], spans: Sequence[Span]) -> list[list[int]]:
        """What a step snapshots: two borders far before the end of their span, others freely."""
        spare, found = BORDERS, []
        for run, span in zip(runs, spans, strict=True):
            own = []
            for border in self.plain.wanted(run, span):
                far = border < span.end - 8 and span.rows > 16
                if spare or not far:
                    spare -= far
                    own.append(border)
            found.append(own)
        return found

    def leave(self) -> None:
        if self.live:
            self._leave(self.draw.choice([*self.live]))

    def _leave(self, sequence: SequenceId) -> None:
        run = self.live.pop(sequence)
        for _ in range(2):
            self.world.ledger.release(sequence)
        self.plain.pending -= len(run.pending)
        self.plain.leave(run)

    def check(self) -> None:
        owners, plain = self.world.owners, self.plain
        for _ in range(3):
            prompt = self.prompt()
            assert owners.prefixes.resumable(prompt) == plain.resumable(prompt)
        held = sum(pages_for(len(run.rows)) - run.shared for run in self.live.values())
        used = sum(users > 0 for users, _ in plain.pages.values())
        assert owners.pages.free == PAGES - held - used
        assert owners.pages.cached == len(plain.pages) - used
        assert owners.prefixes.snapshots == len(plain.snapshots)
        tables = [tuple(owners.pages.table(name)) for name in self.live]
        assert all(len(set(table)) == len(table) for table in tables)
        for name in self.draw.sample([*self.live], min(self.draw.randint(0, 1), len(self.live))):
            self._judge(name)

    def _judge(self, sequence: SequenceId) -> None:
        """Compute the rows of a sequence whole, and compare all that it can read."""
        rows = self.live[sequence].rows
        assert self.world.owners.tokens.frontier(sequence) == len(rows)
        if not rows:
            return
        self.judge.owners.tokens.admit(sequence, rows)
        with self.judge.ledger.open([Span(sequence, 0, len(rows))]) as transaction:
            self.judge.write([Span(sequence, 0, len(rows))], list(rows))
            transaction.commit([len(rows)])
        ours = self.world.visible(sequence)
        theirs = self.judge.visible(sequence)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        self.judge.ledger.release(sequence)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_plain_cache_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, seed: int, whole: bool
) -> None:
    monkeypatch.setattr(prefixes, "STRIDE", STRIDE)
    driver = Driver(Random(seed), whole)
    for _ in range(200):
        driver.draw.choices(
            [driver.admit, driver.step, driver.leave], weights=[3, 10, 1 + (driver.hits % 2)]
        )[0]()
        driver.check()
    assert driver.hits > 3
    assert driver.world.owners.prefixes._tree.evicted > 3
    while driver.live:
        driver.leave()
    owners, tree = driver.world.owners, driver.world.owners.prefixes._tree
    assert owners.free == (PAGES, SLOTS)
    assert tree.free_places + tree.snapshots == PLACES
    for _ in range(owners.pages.cached):
        tree.evict()
    assert (tree.free_places, tree.idle, tree._root.below) == (PLACES, 0, {})
