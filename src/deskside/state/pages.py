"""Pages of 128 tokens: which of them hold the compressed entries of which sequence.

Page ids are shared by the pools of all layers. Pages are taken lazily and the tail pages that a
commit does not need go back at once. Free pages are handed out lowest first, so that equal
histories give equal tables on every rank. Whole pages may be shared by sequences whose tokens begin
alike; they lie before every frontier and so are never written again. When a sequence leaves, its
shared pages stay in the tree and count as free until they are taken back.
"""

import heapq
from collections.abc import Sequence

from deskside.core import SequenceId, Span
from deskside.errors import CapacityError
from deskside.layout.kv import PAGE, pages_for
from deskside.state.prefix_tree import Node, PrefixTree

__all__ = ["PageTable"]


class PageTable:
    """Owner of the page tables of all sequences."""

    def __init__(self, pages: int, tree: PrefixTree | None = None) -> None:
        self.pages = pages
        self._tree = tree or PrefixTree(0)
        self._free = list(range(pages))
        self._tables: dict[SequenceId, list[int]] = {}
        self._paths: dict[SequenceId, list[Node]] = {}
        """The shared pages at the beginning of a table."""

    @property
    def free(self) -> int:
        """Pages that no sequence holds."""
        return len(self._free) + self._tree.idle

    @property
    def cached(self) -> int:
        """Pages among the free ones that may be found again."""
        return self._tree.idle

    def table(self, sequence: SequenceId) -> list[int]:
        """Return the pages of a sequence in order of position; do not change the list."""
        return self._tables.get(sequence, [])

    def path(self, sequence: SequenceId) -> list[Node]:
        """Return the shared pages that a table begins with; do not change the list."""
        return self._paths.get(sequence, [])

    def resume(self, sequence: SequenceId, nodes: Sequence[Node]) -> None:
        """Let a table begin with pages that others computed."""
        assert sequence not in self._tables
        self._tree.use(nodes)
        self._paths[sequence] = list(nodes)
        self._tables[sequence] = [node.page for node in nodes]

    def share(self, sequence: SequenceId, tokens: Sequence[int], rows: int) -> None:
        """Let the whole pages of a sequence's first rows be found; its frontier is behind them.

        Where another sequence left the same page before, this one takes that and frees its own:
        the same tokens behind the same tokens have the same bits.
        """
        count = rows // PAGE
        path = self._paths.get(sequence, [])
        if count <= len(path):
            return
        path = self._paths.setdefault(sequence, path)
        table = self._tables[sequence]
        for index in range(len(path), count):
            part = tokens[index * PAGE : (index + 1) * PAGE]
            node = self._tree.put(path[-1] if path else None, part, table[index])
            if node.page != table[index]:
                heapq.heappush(self._free, table[index])
                table[index] = node.page
            path.append(node)

    def reserve(self, span: Span) -> None:
        """Take tail pages up to the span's end.

        Raises:
            CapacityError: fewer pages are free than needed.
        """
        table = self._tables.get(span.sequence, [])
        missing = pages_for(span.end) - len(table)
        if missing > self.free:
            raise CapacityError(
                f"the KV cache is full: need {missing} more pages of {PAGE} tokens, have "
                f"{self.free} of {self.pages}; raise --kv-tokens"
            )
        if missing > 0:
            table = self._tables.setdefault(span.sequence, table)
            table.extend(self._take() for _ in range(missing))

    def commit(self, span: Span, kept: int) -> None:
        """Return the pages beyond the new frontier."""
        table = self._tables.get(span.sequence, [])
        while len(table) > pages_for(span.start + kept):
            heapq.heappush(self._free, table.pop())

    def release(self, sequence: SequenceId) -> None:
        """Return all pages of a sequence; those that can be found stay in the tree."""
        path = self._paths.pop(sequence, [])
        for page in self._tables.pop(sequence, [])[len(path) :]:
            heapq.heappush(self._free, page)
        self._tree.leave(path)

    def _take(self) -> int:
        return heapq.heappop(self._free) if self._free else self._tree.evict()
