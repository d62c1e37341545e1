"""What the leading rank tells the others in a step, so that they decide nothing.

`Alone` leads nobody. `Led` sends work, choice and word, and knows in which of them a fault may
still cost one request alone: while the others wait for the word. Anywhere else it ends the group.
"""

import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from deskside.core import Admission, Emission, SequenceId, Span
from deskside.distributed.group import Group
from deskside.engine.owners import Owners
from deskside.errors import LostRankError
from deskside.wire.ranks import Admitted, Choice, Leave, Record, Rows, Word, Work, pack

__all__ = ["Alone", "Lead", "Led", "digest"]


class Lead(Protocol):
    """What the engine says to other ranks."""

    def admitted(self, admission: Admission) -> None:
        """Note who entered, to be told with the next work."""
        ...

    def gone(self, sequence: SequenceId) -> None:
        """Note who left, to be told with the next work."""
        ...

    def work(
        self,
        step: int,
        spans: Sequence[Span],
        drafting: Sequence[Span],
        scored: Sequence[int],
    ) -> None:
        """Begin a step of these spans: some are drafted for, of some first rows are scored."""
        ...

    def together(self, doing: str) -> AbstractContextManager[None]:
        """Do something that every rank does; a fault in it ends the group.

        Raises:
            LostRankError: something was raised, here or elsewhere.
        """
        ...

    def chosen(self, proposals: Sequence[Sequence[int]]) -> None:
        """Tell the proposals behind each span, where any were drafted for."""
        ...

    def decided(self, emissions: Sequence[Emission]) -> None:
        """Tell how the spans ended."""
        ...

    def failed(self) -> None:
        """Let every rank forget the step that was begun, if one was."""
        ...

    def leave(self) -> bool:
        """Let the other ranks end; say whether they could be told. Any number of times."""
        ...


class Alone:
    """One rank has nobody to tell."""

    def admitted(self, admission: Admission) -> None:
        """Tell nobody."""

    def gone(self, sequence: SequenceId) -> None:
        """Tell nobody."""

    def work(
        self,
        step: int,
        spans: Sequence[Span],
        drafting: Sequence[Span],
        scored: Sequence[int],
    ) -> None:
        """Tell nobody."""

    def together(self, doing: str) -> AbstractContextManager[None]:
        """Let faults be what they are."""
        return nullcontext()

    def chosen(self, proposals: Sequence[Sequence[int]]) -> None:
        """Tell nobody."""

    def decided(self, emissions: Sequence[Emission]) -> None:
        """Tell nobody."""

    def failed(self) -> None:
        """Tell nobody."""

    def leave(self) -> bool:
        """Tell nobody."""
        return True


class Led:
    """The leader's side of a group."""

    def __init__(self, group: Group, owners: Owners) -> None:
        self._group = group
        self._owners = owners
        self._gone: list[SequenceId] = []
        self._admitted: list[Admitted] = []
        self._drafted = False
        self._waited_for = False
        self._broken = False

    def admitted(self, admission: Admission) -> None:
        """Note who entered."""
        self._admitted.append(
            Admitted(
                sequence=admission.sequence,
                prompt=admission.request.prompt,
                reused=admission.reused,
            )
        )

    def gone(self, sequence: SequenceId) -> None:
        """Note who left."""
        self._gone.append(sequence)

    def work(
        self,
        step: int,
        spans: Sequence[Span],
        drafting: Sequence[Span],
        scored: Sequence[int],
    ) -> None:
        """Send the work.

        Raises:
            LostRankError: the group has ended before.
        """
        if self._broken:
            raise LostRankError("the ranks were parted by an earlier fault; start again")
        drafted = {span.sequence for span in drafting}
        self._drafted = bool(drafted)
        rows = tuple(
            Rows(
                sequence=span.sequence,
                start=span.start,
                certain=span.certain,
                samples=span.samples,
                drafts=span.sequence in drafted,
                scored=count,
            )
            for span, count in zip(spans, scored, strict=True)
        )
        gone, admitted = tuple(self._gone), tuple(self._admitted)
        self._gone.clear()
        self._admitted.clear()
        self._group.enter(f"step {step}")
        found = digest(step, self._owners, spans)
        self._tell(Work(step=step, gone=gone, admitted=admitted, spans=rows, digest=found))
        self._waited_for = bool(spans)

    @contextmanager
    def together(self, doing: str) -> Iterator[None]:
        """Do what every rank does."""
        try:
            yield
        except LostRankError:
            self._broken = True
            raise
        except Exception as fault:
            self._broken = True
            line = f"rank 0 raised {type(fault).__name__} in the {doing} of several ranks: {fault}"
            raise LostRankError(line) from fault
        except BaseException:
            self._broken = True  # interrupted: the others wait somewhere in it
            raise

    def chosen(self, proposals: Sequence[Sequence[int]]) -> None:
        """Send the choice; without a draft all know that it is nothing."""
        if not self._drafted:
            return
        self._tell(Choice(proposals=tuple(tuple(ids) for ids in proposals)))

    def decided(self, emissions: Sequence[Emission]) -> None:
        """Send the word."""
        self._waited_for = False
        self._tell(
            Word(
                kept=tuple(emission.kept for emission in emissions),
                tokens=tuple(emission.tokens for emission in emissions),
            )
        )

    def failed(self) -> None:
        """Send that nothing is kept, to ranks that wait for the word."""
        if self._waited_for and not self._broken:
            self._waited_for = False
            self._tell(Word(failed=True))

    def leave(self) -> bool:
        """Send the others away, where they still listen."""
        if self._broken:
            return False
        try:
            self.failed()
            self._tell(Leave())
        except LostRankError:
            return False
        self._broken = True
        return True

    def _tell(self, record: Record) -> None:
        with self.together("telling"):
            self._group.tell(pack(record))


def digest(step: int, owners: Owners, spans: Sequence[Span]) -> int:
    """Return a checksum of a step's number, its spans and what the owners hold of them.

    What is kept for sequences to come counts too.
    """
    numbers = [step, *owners.free, *owners.kept]
    for span in spans:
        sequence = span.sequence
        pages, slot = owners.pages.table(sequence), owners.rings.held(sequence)
        numbers += (sequence, span.start, span.certain, span.samples)
        numbers += (owners.tokens.frontier(sequence), -1 if slot is None else slot, len(pages))
        numbers += pages
    return zlib.crc32(array("q", numbers))
