"""One rank's engine: a step from plan to output.

Owns the order of things within a step and the records of live requests. It decides nothing about
who runs; a plan says that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from deskside.core import Admission, Emission, Request, SequenceId, Span, StepOutput, StepPlan
from deskside.engine.inputs import BatchBuilder
from deskside.engine.verify import Proposal, Question, judge
from deskside.model.flash import Flash
from deskside.speculate.policy import Policy
from deskside.speculate.stop import StopRule
from deskside.state.kv import KvState
from deskside.state.owner import Ledger
from deskside.state.pages import PageTable
from deskside.state.rings import Rings
from deskside.state.tokens import TokenStore

__all__ = ["Engine", "Owners"]


@dataclass(frozen=True, slots=True)
class Owners:
    """The state owners of a rank."""

    tokens: TokenStore
    pages: PageTable
    rings: Rings

    @staticmethod
    def allocate(state: KvState, pages: int, slots: int) -> "Owners":
        """Make owners over an allocated cache."""
        return Owners(TokenStore(), PageTable(pages), Rings(slots, state.groups))

    def ledger(self) -> Ledger:
        """Return the ledger over all of them."""
        return Ledger([self.tokens, self.pages, self.rings])


@dataclass(frozen=True, slots=True)
class _Live:
    request: Request
    seed: int
    policy: Policy
    stop: StopRule


class Engine:
    """Runs steps of one model over one set of state owners."""

    def __init__(
        self,
        model: Flash,
        state: KvState,
        owners: Owners,
        builder: BatchBuilder,
        stop_rule: Callable[[Request], StopRule],
    ) -> None:
        self._model = model
        self._state = state
        self._owners = owners
        self._builder = builder
        self._ledger = owners.ledger()
        self._stop_rule = stop_rule
        self._live: dict[SequenceId, _Live] = {}

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
        with self._ledger.open(plan.spans) as transaction:
            logits = self._forward(plan.spans)
            drawn = self._verify(plan.spans, logits)
            emissions = [self._trim(s, t) for s, t in zip(plan.spans, drawn, strict=True)]
            transaction.commit([emission.kept for emission in emissions])
        ended = dict(zip((span.sequence for span in plan.spans), emissions, strict=True))
        for sequence, emission in ended.items():
            self._owners.tokens.emit(sequence, emission.tokens)
            if emission.finish is not None:
                self.release(sequence)
        return StepOutput(plan.step, ended)

    def release(self, sequence: SequenceId) -> None:
        """Forget a sequence; between steps, any number of times."""
        self._live.pop(sequence, None)
        self._ledger.release(sequence)

    def _admit(self, admission: Admission) -> None:
        request = admission.request
        assert request.params.seed is not None, "a request has its seed when it is admitted"
        stop = self._stop_rule(request)
        policy = Policy(request.params, stop.ends)
        self._owners.tokens.admit(admission.sequence, request.prompt)
        self._live[admission.sequence] = _Live(request, request.params.seed, policy, stop)

    def _forward(self, spans: Sequence[Span]) -> Tensor:
        ids = [token for span in spans for token in self._owners.tokens.rows(span)]
        return self._model.forward(self._builder.build(spans, ids), self._state)

    def _verify(self, spans: Sequence[Span], logits: Tensor) -> list[tuple[int, ...]]:
        """Return the tokens each span would emit; none where it does not sample."""
        sampled = [span for span in spans if span.samples]
        if not sampled:
            return [() for _ in spans]
        questions = [self._question(span, logits.shape[1]) for span in sampled]
        verdicts = iter(judge(logits, questions))
        return [(next(verdicts).token,) if span.samples else () for span in spans]

    def _question(self, span: Span, vocab: int) -> Question:
        live = self._live[span.sequence]
        known = self._owners.tokens.known(span.sequence)
        return Question(live.request, live.seed, live.policy, known, Proposal.none(vocab))

    def _trim(self, span: Span, tokens: tuple[int, ...]) -> Emission:
        """Apply the stop rules before the commit: a stop at token j keeps certain + j - 1 rows."""
        if not span.samples:
            return Emission(span.certain)
        emitted, finish = self._live[span.sequence].stop.take(tokens)
        return Emission(span.certain + len(emitted) - 1, emitted, finish)
