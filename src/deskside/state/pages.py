"""Pages of 128 tokens: which of them hold the compressed entries of which sequence.

Page ids are shared by the pools of all layers. Pages are taken lazily and the tail pages that a
commit does not need go back at once. Free pages are handed out lowest first, so that equal
histories give equal tables on every rank.
"""

import heapq

from deskside.core import SequenceId, Span
from deskside.errors import CapacityError
from deskside.layout.kv import PAGE, pages_for

__all__ = ["PageTable"]


class PageTable:
    """Owner of the page tables of all sequences."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._free = list(range(pages))
        self._tables: dict[SequenceId, list[int]] = {}

    @property
    def free(self) -> int:
        """Pages that no sequence holds."""
        return len(self._free)

    def table(self, sequence: SequenceId) -> list[int]:
        """Return the pages of a sequence in order of position; do not change the list."""
        return self._tables.get(sequence, [])

    def reserve(self, span: Span) -> None:
        """Take tail pages up to the span's end.

        Raises:
            CapacityError: fewer pages are free than needed.
        """
        table = self._tables.get(span.sequence, [])
        missing = pages_for(span.end) - len(table)
        if missing > len(self._free):
            raise CapacityError(
                f"the KV cache is full: need {missing} more pages of {PAGE} tokens, have "
                f"{len(self._free)} of {self.pages}; raise --kv-tokens"
            )
        if missing > 0:
            table = self._tables.setdefault(span.sequence, table)
            table.extend(heapq.heappop(self._free) for _ in range(missing))

    def commit(self, span: Span, kept: int) -> None:
        """Return the pages beyond the new frontier."""
        table = self._tables.get(span.sequence, [])
        while len(table) > pages_for(span.start + kept):
            heapq.heappush(self._free, table.pop())

    def release(self, sequence: SequenceId) -> None:
        """Return all pages of a sequence."""
        for page in self._tables.pop(sequence, []):
            heapq.heappush(self._free, page)
