"""Measures what a draft and a forward cost here, so that the width rule knows what pays.

Runs real steps of a sequence that no request has, and lets go of it at the end. Ranks that follow
see steps like any others.
"""

import time
from dataclasses import dataclass

from deskside.core import Admission, Emission, Request, SamplingParams, SequenceId, Span
from deskside.engine.inputs import BatchBuilder
from deskside.engine.lead import Lead
from deskside.engine.live import Live
from deskside.engine.owners import Owners
from deskside.engine.speculation import Speculator
from deskside.layout.kv import PAGE
from deskside.model.flash import Flash
from deskside.speculate.costs import MEASURED_ROWS, CostTable
from deskside.speculate.policy import Policy
from deskside.speculate.stop import StopRule
from deskside.state.kv import KvState

__all__ = ["measured"]

ROUNDS = 4
"""Times that every point is measured, behind once to warm up."""
SEQUENCE = SequenceId(-1)
"""No request ever has this id."""
STEP = -1


def measured(
    speculator: Speculator,
    model: Flash,
    state: KvState,
    owners: Owners,
    builder: BatchBuilder,
    lead: Lead,
) -> CostTable:
    """Measure the costs of a draft and of a forward on this machine.

    Every point is the least of several rounds over all points: what else the machine does only ever
    adds time, and seldom to one point in every round.
    """
    times = range(1 + ROUNDS)
    rows = [count for count in MEASURED_ROWS if count <= owners.pages.pages * PAGE]
    request = Request((0,) * max(rows))
    owners.admit(SEQUENCE, request.prompt)
    lead.admitted(Admission(SEQUENCE, request, 0))
    steps = _Steps(speculator, model, state, owners, builder, lead)
    try:
        rounds = [[steps.forward(Span(SEQUENCE, 0, count)) for count in rows] for _ in times]
        steps.forward(Span(SEQUENCE, 0, 1), kept=1)  # a draft stands on history
        draft = min([steps.draft() for _ in times][1:])
    finally:
        owners.ledger().release(SEQUENCE)
        lead.gone(SEQUENCE)
    forward = (min(point) for point in zip(*rounds[1:], strict=True))
    return CostTable.measured(draft, dict(zip(rows, forward, strict=True)))


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of one sequence; each method returns the seconds of the part that it measures."""

    speculator: Speculator
    model: Flash
    state: KvState
    owners: Owners
    builder: BatchBuilder
    lead: Lead

    def forward(self, span: Span, kept: int = 0) -> float:
        """Run a step without proposals."""
        self.lead.work(STEP, [span], [], [0])
        return self._rest(span, kept)

    def draft(self) -> float:
        """Draft behind one row, then run that row."""
        request = Request((), SamplingParams(temperature=0, max_tokens=64))
        live = Live(request, 0, Policy(request.params), StopRule(request, -1, None))
        span, known = Span(SEQUENCE, 1, 1), {SEQUENCE: live}
        drafting = self.speculator.drafting([span], known)
        self.lead.work(STEP, [span], drafting, [0])
        started = time.perf_counter()
        with self.lead.together("draft"):
            self.speculator.propose([span], drafting, known)
        seconds = time.perf_counter() - started
        self._rest(span, 0)
        self.speculator.release(SEQUENCE)
        return seconds

    def _rest(self, span: Span, kept: int) -> float:
        self.lead.chosen([()])
        with self.owners.ledger().open([span]) as transaction:
            started = time.perf_counter()
            batch = self.builder.build([span], self.owners.tokens.rows(span), prompts=[0])
            with self.lead.together("forward"):
                self.speculator.forward(self.model, batch, self.state)
            seconds = time.perf_counter() - started
            self.lead.decided([Emission(kept)])
            transaction.commit([kept])
        return seconds
