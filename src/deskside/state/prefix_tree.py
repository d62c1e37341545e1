"""Whole pages of tokens that were computed before, as a tree, and which of them have a snapshot.

A page hangs below the pages that come before it and is found by its own tokens, all of them: two
prompts share what they have in common, and nothing is taken for equal that is not. Pages that no
sequence uses can be taken back, the longest unused first and the end of a branch before its
beginning. Knows numbers alone: pages, places of snapshots, and an order of events that is the same
on every rank.
"""

import heapq
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from deskside.layout.kv import PAGE

__all__ = ["Node", "PrefixTree"]

CROWDED = 64
"""Entries of the queue of idle ends, beyond twice their number, at which it is made anew."""


@dataclass(eq=False, slots=True)
class Node:
    """One page behind all those above it."""

    page: int
    above: "Node | None" = None
    tokens: bytes = b""
    depth: int = 0
    """Pages up to its end."""
    below: dict[bytes, "Node"] = field(default_factory=dict)
    users: int = 0
    """Sequences that hold the page."""
    left: int = 0
    """When the last of them left."""
    place: int | None = None
    """Of the snapshot of the rings at its end."""
    kept: bool = True
    """Whether the tree still holds it."""


class PrefixTree:
    """Pages by the tokens in and before them."""

    def __init__(self, places: int) -> None:
        """Begin without pages, with room for so many snapshots; none means that nothing is kept."""
        self.places = places
        self.idle = 0
        """Pages that no sequence holds: they can be taken back."""
        self.evicted = 0
        """Pages that were taken back."""
        self._root = Node(-1)
        self._ends: list[tuple[int, int, int, Node]] = []
        self._clock = 0
        self._entries = 0
        self._free_places = list(range(places))
        self._snapshots: dict[int, Node] = {}
        """By place, the longest unused first."""

    @property
    def snapshots(self) -> int:
        """Snapshots that can be found."""
        return len(self._snapshots)

    @property
    def free_places(self) -> int:
        """Places without a snapshot."""
        return len(self._free_places)

    def find(self, tokens: Sequence[int]) -> list[Node]:
        """Return the known pages that these tokens begin with."""
        found, node = [], self._root
        for page in _pages(tokens):
            below = node.below.get(page)
            if below is None:
                break
            found.append(below)
            node = below
        return found

    def put(self, above: Node | None, tokens: Sequence[int], page: int) -> Node:
        """Return the page of these tokens behind another one, in use once more.

        Where it is not known yet, `page` becomes it.
        """
        above = above or self._root
        (key,) = _pages(tokens)
        node = above.below.get(key)
        if node is None:
            node = Node(page, above, key, above.depth + 1)
            above.below[key] = node
            self.idle += 1
        self._use(node)
        return node

    def use(self, nodes: Iterable[Node]) -> None:
        """Let one more sequence hold pages."""
        for node in nodes:
            self._use(node)

    def leave(self, nodes: Sequence[Node]) -> None:
        """Let a sequence give up pages; the snapshots among them count as used now."""
        self._clock += 1
        for node in reversed(nodes):
            node.users -= 1
            assert node.users >= 0
            node.left = self._clock
            self.idle += node.users == 0
            self._note_end(node)

    def evict(self) -> int:
        """Forget the page that nobody uses for the longest time, and return it."""
        assert self.idle, "somebody uses every page"
        while True:
            left, _, _, node = heapq.heappop(self._ends)
            if _is_end(node) and node.left == left:
                break
        assert node.above is not None
        del node.above.below[node.tokens]
        node.kept = False
        self.drop(node)
        self.idle -= 1
        self.evicted += 1
        self._note_end(node.above)
        return node.page

    def take_place(self) -> int | None:
        """Return a place for a snapshot, if need be that of the one unused for the longest time."""
        if not self._free_places:
            if not self._snapshots:
                return None  # every place waits to become a snapshot
            self.drop(next(iter(self._snapshots.values())))
        return heapq.heappop(self._free_places)

    def give_place(self, place: int) -> None:
        """Return a place that did not become a snapshot."""
        heapq.heappush(self._free_places, place)

    def keep(self, node: Node, place: int) -> None:
        """Let a place be the snapshot at a page's end; where there is one already, it stays."""
        if node.place is None and node.kept:
            node.place = place
            self._snapshots[place] = node
        else:
            self.give_place(place)

    def drop(self, node: Node) -> None:
        """Forget the snapshot at a page's end, if there is one."""
        if node.place is not None:
            del self._snapshots[node.place]
            self.give_place(node.place)
            node.place = None

    def renew(self, node: Node) -> None:
        """Let a snapshot count as used now."""
        assert node.place is not None
        self._snapshots[node.place] = self._snapshots.pop(node.place)

    def _use(self, node: Node) -> None:
        self.idle -= node.users == 0
        node.users += 1

    def _note_end(self, node: Node) -> None:
        """Queue a page for eviction where nothing hangs below it and nobody uses it."""
        if not _is_end(node):
            return
        self._entries += 1
        heapq.heappush(self._ends, (node.left, -node.depth, self._entries, node))
        if len(self._ends) > 2 * self.idle + CROWDED:
            alive = {id(entry[3]): entry for entry in self._ends if _current(entry)}
            self._ends = sorted(alive.values(), key=lambda entry: entry[:3])


def _pages(tokens: Sequence[int]) -> Iterator[bytes]:
    """Yield whole pages of tokens as bytes: they are short, and equal where the tokens are."""
    for start in range(0, len(tokens) - PAGE + 1, PAGE):
        yield array("I", tokens[start : start + PAGE]).tobytes()


def _is_end(node: Node) -> bool:
    return node.kept and node.above is not None and not node.users and not node.below


def _current(entry: tuple[int, int, int, Node]) -> bool:
    return _is_end(entry[3]) and entry[3].left == entry[0]
