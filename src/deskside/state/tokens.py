"""The tokens of every sequence and how far they have been processed.

A sequence knows its prompt and what was emitted; its frontier counts the rows that are history. The
last emitted token is known but not yet history: the anchor of the next step.
"""

from collections.abc import Sequence

from deskside.core import SequenceId, Span

__all__ = ["TokenStore"]


class TokenStore:
    """Owner of token ids and frontiers."""

    def __init__(self) -> None:
        self._known: dict[SequenceId, list[int]] = {}
        self._frontier: dict[SequenceId, int] = {}

    def admit(self, sequence: SequenceId, prompt: Sequence[int], frontier: int = 0) -> None:
        """Let a sequence enter with its prompt, of which so many tokens are history already."""
        assert sequence not in self._known
        self._known[sequence] = list(prompt)
        self._frontier[sequence] = frontier

    def emit(self, sequence: SequenceId, tokens: Sequence[int]) -> None:
        """Append tokens that were drawn; rows of them become history by commits."""
        self._known[sequence].extend(tokens)

    def rows(self, span: Span, proposals: Sequence[int] = ()) -> list[int]:
        """Return the token ids of a span's rows: known ones, then its proposals."""
        assert len(proposals) == span.proposals
        known = self._known[span.sequence][span.start : span.start + span.certain]
        assert len(known) == span.certain
        return known + list(proposals)

    def known(self, sequence: SequenceId) -> Sequence[int]:
        """Return prompt and emitted tokens; do not change or keep them."""
        return self._known[sequence]

    def frontier(self, sequence: SequenceId) -> int:
        """Return how many rows are history."""
        return self._frontier[sequence]

    def reserve(self, span: Span) -> None:
        """Check that the span starts where history ends."""
        assert span.start == self._frontier[span.sequence], "a span starts at the frontier"

    def commit(self, span: Span, kept: int) -> None:
        """Move the frontier over the kept rows."""
        self._frontier[span.sequence] = span.start + kept

    def release(self, sequence: SequenceId) -> None:
        """Drop a sequence."""
        self._known.pop(sequence, None)
        self._frontier.pop(sequence, None)
