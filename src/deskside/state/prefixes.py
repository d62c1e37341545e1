"""Which computed prefixes can be taken up again, and where their rings are to be copied.

A prefix is pages and the snapshot of the rings at its end. Pages are shared as soon as their rows
are history; snapshots are sparse. A prompt gets one at its last page border, one where it leaves
what was known before, and one every 2,048 tokens; a text that goes on keeps one at its last border.
Knows no tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from deskside.core import SequenceId, Span
from deskside.layout.kv import BORDERS, PAGE
from deskside.state.pages import PageTable
from deskside.state.prefix_tree import Node, PrefixTree

__all__ = ["STRIDE", "Prefixes"]

STRIDE = 16 * PAGE
"""Tokens between two snapshots of a long prompt."""


@dataclass(slots=True)
class _Record:
    """What is known of one sequence."""

    prompt: int
    """Tokens of its prompt."""
    marks: frozenset[int]
    """Borders in the prompt that get a snapshot, besides those of the stride."""
    pending: dict[int, int] = field(default_factory=dict)
    """Places by border, until the page before it is shared."""
    last: Node | None = None
    """Where its snapshot behind the prompt is; the next one takes its turn."""


class Prefixes:
    """Owner of what sequences leave for others."""

    def __init__(self, tree: PrefixTree, pages: PageTable, *, whole: bool = False) -> None:
        """Look after the tree that a page table shares its pages in.

        `whole` says that a row has the same bits whether its token was generated or read in a
        prompt. Without it rows of generated tokens are left to nobody.
        """
        self._tree = tree
        self._pages = pages
        self._whole = whole
        self._records: dict[SequenceId, _Record] = {}

    @property
    def snapshots(self) -> int:
        """Snapshots that can be found."""
        return self._tree.snapshots

    def resumable(self, prompt: Sequence[int]) -> int:
        """Return how many first tokens of a prompt need no forward, in whole pages.

        At least one token is left, whose row says what follows.
        """
        if not self._tree.places:
            return 0
        nodes = self._tree.find(prompt[: len(prompt) - 1])
        return max((node.depth * PAGE for node in nodes if node.place is not None), default=0)

    def admit(self, sequence: SequenceId, prompt: Sequence[int], reused: int) -> int | None:
        """Let a sequence enter that takes up `reused` tokens; return the place of their rings."""
        if not self._tree.places:
            assert not reused
            return None
        ends = {(len(prompt) - 1) // PAGE * PAGE, len(prompt) // PAGE * PAGE}
        nodes = self._tree.find(prompt)
        self._records[sequence] = _Record(len(prompt), frozenset({*ends, len(nodes) * PAGE}))
        if not reused:
            return None
        nodes = nodes[: reused // PAGE]
        self._pages.resume(sequence, nodes)
        self._tree.renew(nodes[-1])
        return nodes[-1].place

    def wanted(self, span: Span) -> tuple[int, ...]:
        """Return the page borders in and at the end of a span that get a snapshot if they stay."""
        first = span.start // PAGE * PAGE + PAGE
        record = self._records.get(span.sequence)
        if first > span.end or record is None:
            return ()
        borders = [b for b in range(first, span.end + 1, PAGE) if self._wants(record, b)]
        return tuple(borders[-BORDERS:])

    def place(self, sequence: SequenceId, border: int) -> int | None:
        """Return where the rings at a border that stays are to be copied; None keeps nothing."""
        place = self._tree.take_place()
        if place is not None:
            self._records[sequence].pending[border] = place
        return place

    def settle(self, sequence: SequenceId, known: Sequence[int], frontier: int) -> None:
        """Share what became history, now that its tokens are known."""
        record = self._records.get(sequence)
        if record is None:
            return
        rows = frontier if self._whole else min(frontier, record.prompt)
        self._pages.share(sequence, known, rows)
        for border, place in record.pending.items():
            node = self._pages.path(sequence)[border // PAGE - 1]
            self._tree.keep(node, place)
            if node.place == place and border > record.prompt and border % STRIDE:
                if record.last is not None:
                    self._tree.drop(record.last)
                record.last = node
        record.pending.clear()

    def reserve(self, span: Span) -> None:
        """Need no room."""

    def commit(self, span: Span, kept: int) -> None:
        """Wait for the tokens of the kept rows."""

    def release(self, sequence: SequenceId) -> None:
        """Forget a sequence; what it left stays."""
        record = self._records.pop(sequence, None)
        for place in record.pending.values() if record else ():
            self._tree.give_place(place)

    def _wants(self, record: _Record, border: int) -> bool:
        if border > record.prompt:
            return self._whole
        return border in record.marks or border % STRIDE == 0
