"""A rank that follows: it computes its part of every step and decides nothing.

It has the owners of state and the weights' slices that the leader has, and no policies, stop rules
or controllers. What it is told is what happens.
"""

from collections.abc import Sequence
from typing import TypeVar

from deskside.core import SequenceId, Span
from deskside.distributed.group import Group
from deskside.engine.inputs import BatchBuilder
from deskside.engine.lead import digest
from deskside.engine.owners import Owners
from deskside.engine.prompt_rows import PromptRows
from deskside.engine.speculation import Speculation
from deskside.errors import CapacityError, RankDisagreementError
from deskside.injection import Probe, Site
from deskside.model.flash import Flash
from deskside.state.kv import KvState
from deskside.wire.ranks import Choice, Leave, Record, Word, Work, unpack

__all__ = ["Follower"]

R = TypeVar("R", Choice, Word)


class Follower:
    """Steps of one rank, as the leader tells them."""

    def __init__(
        self,
        group: Group,
        model: Flash,
        state: KvState,
        owners: Owners,
        builder: BatchBuilder,
        speculation: Speculation,
        probe: Probe | None = None,
    ) -> None:
        self._group = group
        self._model = model
        self._state = state
        self._owners = owners
        self._builder = builder
        self._speculation = speculation
        self._probe = probe or Probe()
        self._ledger = owners.ledger()

    def run(self) -> None:
        """Follow until the leader says leave.

        Raises:
            RankDisagreementError: this rank's state is not the leader's.
            LostRankError: another rank is gone.
        """
        while True:
            self._group.enter("waiting for work")
            record = self._heard()
            match record:
                case Work():
                    self._step(record)
                case Leave():
                    return
                case _:
                    raise RankDisagreementError(f"rank {self._group.rank} was told {record}")

    def _step(self, work: Work) -> None:
        self._group.enter(f"step {work.step}")
        for sequence in work.gone:
            self._ledger.release(SequenceId(sequence))
        for one in work.admitted:
            self._owners.admit(SequenceId(one.sequence), one.prompt, one.reused)
        spans = [Span(SequenceId(r.sequence), r.start, r.certain, 0, r.samples) for r in work.spans]
        if digest(work.step, self._owners, spans) != work.digest:
            raise RankDisagreementError(
                f"rank {self._group.rank} disagrees with its leader at step {work.step}: "
                "frontiers, pages or slots differ"
            )
        if not spans:
            return
        drafting = [span for span, rows in zip(spans, work.spans, strict=True) if rows.drafts]
        self._probe.at(Site.DRAFT)
        self._speculation.follow(drafting)
        proposals = self._told(Choice).proposals if drafting else ((),) * len(spans)
        chosen = [
            Span(s.sequence, s.start, s.certain, len(ids), s.samples)
            for s, ids in zip(spans, proposals, strict=True)
        ]
        try:
            asked = PromptRows(chosen, [rows.scored for rows in work.spans])
            word = self._run(chosen, proposals, asked.logit_rows())
        except CapacityError:  # the leader's owners refused too
            word = self._told(Word)
            assert word.failed
        if not word.failed:
            for span, tokens in zip(chosen, word.tokens, strict=True):
                self._owners.emit(span.sequence, tokens)

    def _run(
        self,
        spans: Sequence[Span],
        proposals: Sequence[Sequence[int]],
        logit_rows: Sequence[int] | None,
    ) -> Word:
        """Reserve, forward and commit as told.

        Raises:
            CapacityError: an owner has no room for a span; nothing has changed.
        """
        self._probe.at(Site.RESERVE)
        with self._ledger.open(spans) as transaction:
            tokens = self._owners.tokens
            ids = [
                token
                for span, proposed in zip(spans, proposals, strict=True)
                for token in tokens.rows(span, proposed)
            ]
            self._probe.at(Site.INPUTS)
            batch = self._builder.build(spans, ids, logit_rows)
            self._probe.at(Site.FORWARD)
            self._speculation.forward(self._model, batch, self._state)
            word = self._told(Word)
            if not word.failed:
                self._probe.at(Site.COMMIT)
                transaction.commit(word.kept)
            return word

    def _told(self, kind: type[R]) -> R:
        record = self._heard()
        if not isinstance(record, kind):
            raise RankDisagreementError(
                f"rank {self._group.rank} waits for a {kind.__name__} and was told {record}"
            )
        return record

    def _heard(self) -> Record:
        try:
            return unpack(self._group.tell(None))
        except ValueError as error:
            raise RankDisagreementError(f"rank {self._group.rank}: {error}") from error
