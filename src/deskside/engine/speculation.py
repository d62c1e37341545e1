"""Who proposes tokens for a step, and what becomes of the answer.

`TargetOnly` proposes nothing. `Speculator` asks the checkpoint's drafter, lets the width rule cut
the block and the controller pause requests whose proposals are not accepted. Both are exact; they
differ in speed alone.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from deskside.batch import Batch
from deskside.core import Pause, SequenceId, Span
from deskside.engine.live import Live
from deskside.engine.verify import Proposal
from deskside.engine.widths import WidthChooser
from deskside.model.draft_inputs import Anchor
from deskside.model.drafter import Drafter
from deskside.model.flash import Flash
from deskside.spec import DrafterSpec, ModelSpec
from deskside.speculate.costs import CostTable
from deskside.speculate.fallback import Controller, FallbackSettings, Trip
from deskside.speculate.policy import History
from deskside.speculate.proposal import Proposer, draft_uniforms
from deskside.speculate.width import Averages, SpeedBudget
from deskside.state.context import DraftContext
from deskside.state.grammar import Grammars
from deskside.state.kv import KvState
from deskside.state.rings import Rings
from deskside.state.tokens import TokenStore

__all__ = ["Speculation", "Speculator", "TargetOnly"]

log = logging.getLogger("deskside.speculation")


class Speculation(Protocol):
    """What the engine asks around a forward."""

    def drafting(self, spans: Sequence[Span], live: Mapping[SequenceId, Live]) -> list[Span]:
        """Return the spans that are to be drafted for; a pause is noted, so that it can end."""
        ...

    def propose(
        self, spans: Sequence[Span], drafting: Sequence[Span], live: Mapping[SequenceId, Live]
    ) -> list[Proposal]:
        """Return what is proposed behind each span; nothing for those that are not drafted for."""
        ...

    def follow(self, drafting: Sequence[Span]) -> None:
        """Take part in the leader's draft."""
        ...

    def forward(self, model: Flash, batch: Batch, state: KvState) -> Tensor:
        """Run the target, and keep what a later proposal needs of it."""
        ...

    def learn(self, span: Span, accepted: int) -> Pause | None:
        """Take in how many of a committed span's proposals the target accepted."""
        ...

    def release(self, sequence: SequenceId) -> None:
        """Forget a sequence."""
        ...


class TargetOnly:
    """No proposals: every step is the target's own."""

    def drafting(self, spans: Sequence[Span], live: Mapping[SequenceId, Live]) -> list[Span]:
        """Draft for nobody."""
        return []

    def propose(
        self, spans: Sequence[Span], drafting: Sequence[Span], live: Mapping[SequenceId, Live]
    ) -> list[Proposal]:
        """Propose nothing."""
        return [Proposal.none() for _ in spans]

    def follow(self, drafting: Sequence[Span]) -> None:
        """Draft nothing."""
        assert not drafting

    def forward(self, model: Flash, batch: Batch, state: KvState) -> Tensor:
        """Run the target."""
        return model.forward(batch, state)

    def learn(self, span: Span, accepted: int) -> Pause | None:
        """Learn nothing."""
        return None

    def release(self, sequence: SequenceId) -> None:
        """Hold nothing."""


@dataclass(slots=True)
class _Record:
    """What is remembered of one request; a new one starts from nothing."""

    controller: Controller
    averages: Averages
    drafted: bool = False
    confidences: Sequence[float] = ()
    """Of the step's draft, until its outcome is known: a step that fails is not learnt from."""
    cost: float = 1
    """Of the step, in target-only steps."""


@dataclass(slots=True)
class Speculator:
    """Proposals of the checkpoint's drafter."""

    spec: ModelSpec
    drafter: Drafter
    context: DraftContext
    tokens: TokenStore
    rings: Rings
    grammars: Grammars
    widths: WidthChooser
    pools: bool
    """Whether requests without a seed of their own share one budget of rows."""
    stored: CostTable
    costs: CostTable
    fallback: FallbackSettings | None
    _records: dict[SequenceId, _Record] = field(default_factory=dict, init=False)

    def drafting(self, spans: Sequence[Span], live: Mapping[SequenceId, Live]) -> list[Span]:
        """Return every request that waits for its next token and is not paused."""
        return [span for span in spans if self._asks(span, live[span.sequence])]

    def follow(self, drafting: Sequence[Span]) -> None:
        """Take part in the leader's draft; its tokens come with the leader's choice."""
        if drafting:
            self.drafter.draft([self._anchor(span) for span in drafting], (), self.context)

    def propose(
        self, spans: Sequence[Span], drafting: Sequence[Span], live: Mapping[SequenceId, Live]
    ) -> list[Proposal]:
        """Draft and cut every block."""
        proposals = [Proposal.none() for _ in spans]
        if not drafting:
            return proposals
        anchors = [self._anchor(span) for span in drafting]
        proposers = [self._proposer(span, live[span.sequence]) for span in drafting]
        drafts = self.drafter.draft(anchors, proposers, self.context)
        read = drafts.read()
        rows = sum(span.rows for span in spans)
        widths = self._widths(drafting, live, [sure for _, sure in read], rows)
        places = {span.sequence: place for place, span in enumerate(spans)}
        for row, (span, width, (ids, _)) in enumerate(zip(drafting, widths, read, strict=True)):
            proposals[places[span.sequence]] = Proposal(
                ids[:width], drafts.tokens[row, :width], drafts.laws[row][:width]
            )
        return proposals

    def forward(self, model: Flash, batch: Batch, state: KvState) -> Tensor:
        """Run the target and stage the drafter's context rows, also where nobody drafts."""
        features = self.drafter.features(batch)
        logits = model.forward(batch, state, features)
        self.context.stage(self.drafter.context(features.joined(), batch))
        return logits

    def learn(self, span: Span, accepted: int) -> Pause | None:
        """Tell the request's averages and its controller; log and return what the latter decides.

        Called after the commit alone: a step that failed has taught nothing.
        """
        record = self._records.get(span.sequence)
        if record is None:
            return None
        if record.confidences:
            record.averages.observe(record.confidences)
            record.confidences = ()
        if self.fallback is None or (not record.drafted and record.controller.speculates):
            return None  # the last token of a request has nothing to propose behind it
        event = record.controller.observe(accepted, span.proposals, record.cost)
        if event is None:
            return None
        log.info(event.line(span.sequence))
        return Pause.TRIP if isinstance(event, Trip) else Pause.PROBE

    def release(self, sequence: SequenceId) -> None:
        """Forget a sequence."""
        self._records.pop(sequence, None)

    def _asks(self, span: Span, live: Live) -> bool:
        """Whether a span may be drafted for; a pause is noted, so that it can end."""
        if not span.samples or span.start < len(live.request.prompt) or span.certain > 1:
            return False  # behind forced tokens the drafter has no context for the anchor yet
        record = self._record(span.sequence)
        speculates = self.fallback is None or record.controller.speculates
        record.drafted = speculates and live.stop.left > 1
        return record.drafted

    @property
    def _shape(self) -> DrafterSpec:
        assert self.spec.drafter is not None
        return self.spec.drafter

    def _record(self, sequence: SequenceId) -> _Record:
        if sequence not in self._records:
            settings = self.fallback or FallbackSettings()
            self._records[sequence] = _Record(Controller(settings), Averages(self._shape.block))
        return self._records[sequence]

    def _anchor(self, span: Span) -> Anchor:
        (token,) = self.tokens.rows(span)
        return Anchor(token, span.start, self.rings.slot(span.sequence))

    def _proposer(self, span: Span, live: Live) -> Proposer:
        known = self.tokens.known(span.sequence)
        prompt = len(live.request.prompt)
        history = None
        if live.policy.needs_history:
            history = History.of(known[:prompt], known[prompt:], self.spec.vocab)
        allowed = self._allowed(span) if self.grammars.holds(span.sequence) else None
        if live.policy.greedy:
            return Proposer(live.policy, None, history, allowed)
        numbers = draft_uniforms(live.seed, live.request.choice, span.start, self._shape.block)
        return Proposer(live.policy, numbers, history, allowed)

    def _allowed(self, span: Span) -> Callable[[Sequence[int]], Tensor | None]:
        """Return what a grammar says behind a span and proposals."""
        known = self.tokens.rows(span)
        return lambda proposed: self.grammars.allowed(span.sequence, [*known, *proposed])

    def _widths(
        self,
        spans: Sequence[Span],
        live: Mapping[SequenceId, Live],
        confidences: Sequence[Sequence[float]],
        rows: int,
    ) -> list[int]:
        """Cut every block: by what may still be emitted, then by what pays.

        Requests that named their seed are cut alone and by stored costs; the others share a budget
        where the rule has one.
        """
        known = [
            sure[: live[span.sequence].stop.left - 1]
            for span, sure in zip(spans, confidences, strict=True)
        ]
        widths = [
            self._alone(live[span.sequence], self._record(span.sequence), sure)
            for span, sure in zip(spans, known, strict=True)
        ]
        shared = [i for i, span in enumerate(spans) if not live[span.sequence].pinned]
        if self.pools and len(shared) > 1:
            pooled = SpeedBudget(self.costs.step).widths([known[i] for i in shared], rows)
            for i, width in zip(shared, pooled, strict=True):
                widths[i] = width
        for span, sure, width in zip(spans, confidences, widths, strict=True):
            record = self._record(span.sequence)
            record.confidences = sure
            record.cost = self._costs(live[span.sequence]).relative(width)
        return widths

    def _costs(self, live: Live) -> CostTable:
        return self.stored if live.pinned else self.costs

    def _alone(self, live: Live, record: _Record, confidences: Sequence[float]) -> int:
        costs = self._costs(live).widths(len(confidences))
        return self.widths(confidences, record.averages.values(), costs)
