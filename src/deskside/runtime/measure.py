"""Measures what a draft and a forward cost here, so that the width rule knows what pays.

Runs real forwards of empty sequences and commits none of them, so nothing is left behind.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

from deskside.core import Request, SamplingParams, SequenceId, Span
from deskside.engine.engine import Owners
from deskside.engine.inputs import BatchBuilder
from deskside.engine.live import Live
from deskside.engine.speculation import Speculator
from deskside.layout.kv import PAGE
from deskside.model.flash import Flash
from deskside.speculate.costs import MEASURED_ROWS, CostTable
from deskside.speculate.policy import Policy
from deskside.speculate.stop import StopRule
from deskside.state.kv import KvState

__all__ = ["measured"]

REPEATS = 3
SEQUENCE = SequenceId(-1)
"""No request ever has this id."""


def measured(
    speculator: Speculator, model: Flash, state: KvState, owners: Owners, builder: BatchBuilder
) -> CostTable:
    """Measure the costs of a draft and of a forward on this machine.

    Every point is a median of three; what noise makes fall is made monotone.
    """
    rows = [count for count in MEASURED_ROWS if count <= owners.pages.pages * PAGE]
    owners.tokens.admit(SEQUENCE, (0,) * max(rows))
    try:
        forward = {
            count: _seconds(partial(_forward, speculator, model, state, owners, builder, count))
            for count in rows
        }
        draft = _seconds(partial(_draft, speculator, owners))
    finally:
        owners.ledger().release(SEQUENCE)
    return CostTable.measured(draft, forward)


def _forward(
    speculator: Speculator,
    model: Flash,
    state: KvState,
    owners: Owners,
    builder: BatchBuilder,
    rows: int,
) -> None:
    span = Span(SEQUENCE, 0, rows)
    with owners.ledger().open([span]):
        batch = builder.build([span], owners.tokens.rows(span), prompts=[0])
        speculator.forward(model, batch, state)


def _draft(speculator: Speculator, owners: Owners) -> None:
    request = Request((), SamplingParams(temperature=0, max_tokens=64))
    live = Live(request, 0, Policy(request.params), StopRule(request, -1, None))
    span = Span(SEQUENCE, 0, 1)
    with owners.ledger().open([span]):
        speculator.propose([span], {SEQUENCE: live})
    speculator.release(SEQUENCE)


def _seconds(run: Callable[[], None]) -> float:
    run()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
