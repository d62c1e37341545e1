"""One rank's engine: a step from plan to output.

Owns the order of things within a step and the records of live requests. It decides nothing about
who runs; a plan says that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from deskside.core import Admission, Emission, Request, SequenceId, Span, StepOutput, StepPlan
from deskside.engine.inputs import BatchBuilder
from deskside.engine.live import Live
from deskside.engine.speculation import Speculation
from deskside.engine.verify import Proposal, Question, judge
from deskside.model.flash import Flash
from deskside.speculate.acceptance import Verdict
from deskside.speculate.policy import Policy
from deskside.speculate.stop import StopRule
from deskside.state.kv import KvState
from deskside.state.owner import Ledger
from deskside.state.pages import PageTable
from deskside.state.rings import RingGroup, Rings
from deskside.state.tokens import TokenStore

__all__ = ["Engine", "Owners"]


@dataclass(frozen=True, slots=True)
class Owners:
    """The state owners of a rank."""

    tokens: TokenStore
    pages: PageTable
    rings: Rings

    @staticmethod
    def allocate(
        state: KvState, pages: int, slots: int, groups: Sequence[RingGroup] = ()
    ) -> "Owners":
        """Make owners over an allocated cache and further groups of rings."""
        rings = Rings(slots, (*state.groups, *groups))
        return Owners(TokenStore(), PageTable(pages), rings)

    def ledger(self) -> Ledger:
        """Return the ledger over all of them."""
        return Ledger([self.tokens, self.pages, self.rings])


class Engine:
    """Runs steps of one model over one set of state owners."""

    def __init__(
        self,
        model: Flash,
        state: KvState,
        owners: Owners,
        builder: BatchBuilder,
        stop_rule: Callable[[Request], StopRule],
        speculation: Speculation,
    ) -> None:
        self._model = model
        self._state = state
        self._owners = owners
        self._builder = builder
        self._ledger = owners.ledger()
        self._stop_rule = stop_rule
        self._speculation = speculation
        self._live: dict[SequenceId, Live] = {}

    def step(self, plan: StepPlan) -> StepOutput:
        """Run one step; on any exception no state has changed but that of `plan.aborts`.

        Raises:
            CapacityError: an owner has no room for a span.
        """
        for sequence in plan.aborts:
            self.release(sequence)
        for admission in plan.admissions:
            self._admit(admission)
        if not plan.spans:
            return StepOutput(plan.step, {})
        proposals = self._speculation.propose(plan.spans, self._live)
        spans = [
            replace(s, proposals=len(p.ids)) for s, p in zip(plan.spans, proposals, strict=True)
        ]
        with self._ledger.open(spans) as transaction:
            logits = self._forward(spans, proposals)
            verdicts = self._verify(spans, proposals, logits)
            emissions = [self._trim(*part) for part in zip(spans, proposals, verdicts, strict=True)]
            transaction.commit([emission.kept for emission in emissions])
        for span, emission in zip(spans, emissions, strict=True):
            self._finish(span, emission)
        ended = zip((span.sequence for span in spans), emissions, strict=True)
        return StepOutput(plan.step, dict(ended))

    def release(self, sequence: SequenceId) -> None:
        """Forget a sequence; between steps, any number of times."""
        self._live.pop(sequence, None)
        self._speculation.release(sequence)
        self._ledger.release(sequence)

    def _admit(self, admission: Admission) -> None:
        request = admission.request
        assert request.params.seed is not None, "a request has its seed when it is admitted"
        stop = self._stop_rule(request)
        policy = Policy(request.params, stop.ends)
        self._owners.tokens.admit(admission.sequence, request.prompt)
        self._live[admission.sequence] = Live(
            request, request.params.seed, policy, stop, admission.pinned
        )

    def _forward(self, spans: Sequence[Span], proposals: Sequence[Proposal]) -> Tensor:
        tokens = self._owners.tokens
        ids = [
            token
            for span, proposal in zip(spans, proposals, strict=True)
            for token in tokens.rows(span, proposal.ids)
        ]
        prompts = [len(self._live[span.sequence].request.prompt) for span in spans]
        batch = self._builder.build(spans, ids, prompts=prompts)
        return self._speculation.forward(self._model, batch, self._state)

    def _verify(
        self, spans: Sequence[Span], proposals: Sequence[Proposal], logits: Tensor
    ) -> list[Verdict | None]:
        """Return the verdict on every span that samples, None for the others."""
        questions = [
            Question(self._live[s.sequence], self._owners.tokens.known(s.sequence), p)
            for s, p in zip(spans, proposals, strict=True)
            if s.samples
        ]
        verdicts = iter(judge(logits, questions) if questions else [])
        return [next(verdicts) if span.samples else None for span in spans]

    def _trim(self, span: Span, proposal: Proposal, verdict: Verdict | None) -> Emission:
        """Apply the stop rules before the commit: a stop at token j keeps certain + j - 1 rows."""
        if verdict is None:
            return Emission(span.certain)
        drawn = (*proposal.ids[: verdict.accepted], verdict.token)
        emitted, finish = self._live[span.sequence].stop.take(drawn)
        kept = span.certain + len(emitted) - 1
        accepted = min(verdict.accepted, len(emitted))
        return Emission(kept, emitted, finish, span.proposals, accepted)

    def _finish(self, span: Span, emission: Emission) -> None:
        """Take in what a committed span brought."""
        self._owners.tokens.emit(span.sequence, emission.tokens)
        self._speculation.learn(span, emission.accepted)
        if emission.finish is not None:
            self.release(span.sequence)
