"""Who owns state, and how all owners move together.

Every owner has three verbs: make room for a span, keep the first rows of it, forget a sequence.
The ledger opens a set of spans in all owners or in none, and a transaction that ends without a
commit keeps no row anywhere: rejection, error and abort leave through the same door.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from deskside.core import SequenceId, Span

__all__ = ["Ledger", "StateOwner", "Transaction"]


class StateOwner(Protocol):
    """One kind of per-sequence state."""

    def reserve(self, span: Span) -> None:
        """Make room for the span after the frontier.

        Raises:
            CapacityError: there is no room; then nothing changed.
        """
        ...

    def commit(self, span: Span, kept: int) -> None:
        """Let the first `kept` rows become history, the rest never happened. Cannot fail."""
        ...

    def release(self, sequence: SequenceId) -> None:
        """Give everything back; between steps, any number of times."""
        ...


class Ledger:
    """All owners, in the order in which they reserve."""

    def __init__(self, owners: Sequence[StateOwner]) -> None:
        self._owners = tuple(owners)

    def open(self, spans: Sequence[Span]) -> "Transaction":
        """Reserve all spans in all owners, or none.

        Raises:
            CapacityError: an owner has no room; what was reserved before it was given back.
        """
        done: list[tuple[StateOwner, Span]] = []
        try:
            for span in spans:
                for owner in self._owners:
                    owner.reserve(span)
                    done.append((owner, span))
        except BaseException:
            for owner, span in reversed(done):
                owner.commit(span, 0)
            raise
        return Transaction(self._owners, tuple(spans))

    def release(self, sequence: SequenceId) -> None:
        """Forget a sequence in every owner."""
        for owner in reversed(self._owners):
            owner.release(sequence)


class Transaction:
    """Reserved spans, waiting for the one number each that ends a step."""

    def __init__(self, owners: tuple[StateOwner, ...], spans: tuple[Span, ...]) -> None:
        self._owners = owners
        self._spans = spans
        self._open = True

    def commit(self, kept: Sequence[int]) -> None:
        """Keep the first `kept[i]` rows of span i in every owner."""
        assert self._open, "a transaction commits once"
        assert all(0 <= k <= s.rows for k, s in zip(kept, self._spans, strict=True))
        self._open = False
        for span, rows in zip(self._spans, kept, strict=True):
            for owner in self._owners:
                owner.commit(span, rows)

    def __enter__(self) -> Self:
        """Return the transaction itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Keep nothing where nothing was committed, in reverse order."""
        if not self._open:
            return
        self._open = False
        for span in reversed(self._spans):
            for owner in reversed(self._owners):
                owner.commit(span, 0)
