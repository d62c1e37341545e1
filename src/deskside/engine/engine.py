"""One rank's engine: a step from plan to output.

Owns the order of things within a step and the records of live requests. It decides nothing about
who runs; a plan says that.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from deskside.core import (
    Admission,
    Emission,
    FinishReason,
    Request,
    SequenceId,
    Span,
    StepOutput,
    StepPlan,
    TokenLogprob,
)
from deskside.engine.inputs import BatchBuilder
from deskside.engine.lead import Alone, Lead
from deskside.engine.live import Live
from deskside.engine.owners import Owners
from deskside.engine.prompt_rows import PromptRows, score
from deskside.engine.speculation import Speculation
from deskside.engine.verify import Answer, Proposal, Question, judge
from deskside.errors import LostRankError, LostWorkerError
from deskside.injection import Act, Probe, Site
from deskside.model.flash import Flash
from deskside.ops.sample import best
from deskside.speculate.policy import Masks, Policy
from deskside.speculate.stop import StopRule
from deskside.state.kv import KvState
from deskside.text.guide import Guides

__all__ = ["Engine"]

log = logging.getLogger("deskside.engine")


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
        guides: Guides,
        lead: Lead | None = None,
        probe: Probe | None = None,
        choose: Callable[[Tensor], Tensor] = best,
    ) -> None:
        self._model = model
        self._state = state
        self._owners = owners
        self._builder = builder
        self._ledger = owners.ledger()
        self._stop_rule = stop_rule
        self._speculation = speculation
        self._guides = guides
        self._lead = lead or Alone()
        self._probe = probe or Probe()
        self._choose = choose
        self._live: dict[SequenceId, Live] = {}

    @property
    def free(self) -> tuple[int, int]:
        """Pages and ring slots that no sequence holds."""
        return self._owners.free

    @property
    def kept(self) -> tuple[int, int]:
        """Free pages that a prompt may find, and snapshots."""
        return self._owners.kept

    def step(self, plan: StepPlan) -> StepOutput:
        """Run one step. A fault costs the request whose rows raise it, and no other.

        Raises:
            LostRankError, LostWorkerError: what computes is damaged.
        """
        for sequence in plan.aborts:
            self.release(sequence)
        lost = dict(self._admit_all(plan.admissions))
        spans = [span for span in plan.spans if span.sequence not in lost]
        emissions = self._attempt(plan.step, spans) if spans else []
        sequences = (span.sequence for span in spans)
        return StepOutput(plan.step, lost | dict(zip(sequences, emissions, strict=True)))

    def _admit_all(self, admissions: Sequence[Admission]) -> Iterator[tuple[SequenceId, Emission]]:
        """Let requests enter, and yield those that could not."""
        for admission in admissions:
            try:
                self._admit(admission)
            except Exception as fault:  # whatever a library raises
                yield admission.sequence, self._lose(admission.sequence, fault)

    def _attempt(self, step: int, spans: Sequence[Span]) -> list[Emission]:
        """Run spans together or, where that raises, each alone."""
        try:
            done = self._run(step, spans)
        except (LostRankError, LostWorkerError):
            raise  # no request's fault: the process should end
        except Exception as fault:  # whatever a library raises; nothing was committed
            self._lead.failed()
            if len(spans) == 1:
                return [self._lose(spans[0].sequence, fault)]
            log.warning("a step of %d requests failed, each is tried alone: %r", len(spans), fault)
        else:
            return [self._settle(*part) for part in done]
        return [emission for span in spans for emission in self._attempt(step, [span])]

    def _run(self, step: int, spans: Sequence[Span]) -> list[tuple[Span, Emission]]:
        """Draft, reserve, forward, accept, trim, commit; on an exception no state has changed.

        Raises:
            CapacityError: an owner has no room for a span.
        """
        drafting = self._speculation.drafting(spans, self._live)
        scored = PromptRows.of(spans, self._live).counts
        self._lead.work(step, spans, drafting, scored)
        with self._lead.together("draft"):
            self._probe.at(Site.DRAFT)
            proposals = self._speculation.propose(spans, drafting, self._live)
        self._lead.chosen([proposal.ids for proposal in proposals])
        spans = [
            replace(span, proposals=len(proposal.ids)) if proposal.ids else span
            for span, proposal in zip(spans, proposals, strict=True)
        ]
        with self._lead.together("reserve"):
            self._probe.at(Site.RESERVE)
        with self._ledger.open(spans) as transaction:
            asked = PromptRows(spans, scored)
            with self._lead.together("forward"):
                logits = self._forward(spans, proposals, asked.logit_rows())
            logits, own = asked.split(logits)
            answers = self._verify(spans, proposals, logits)
            self._probe.at(Site.STOP)
            emissions = [
                self._trim(*part) for part in zip(spans, proposals, answers, own, strict=True)
            ]
            self._probe.at(Site.COMMIT)
            self._lead.decided(emissions)
            transaction.commit([emission.kept for emission in emissions])
        return list(zip(spans, emissions, strict=True))

    def release(self, sequence: SequenceId) -> None:
        """Forget a sequence; between steps, any number of times."""
        self._live.pop(sequence, None)
        self._speculation.release(sequence)
        self._ledger.release(sequence)
        self._lead.gone(sequence)

    def close(self) -> bool:
        """Let the ranks that follow this one end; say whether they could be told."""
        return self._lead.leave()

    def _admit(self, admission: Admission) -> None:
        self._probe.at(Site.ADMIT)
        request = admission.request
        assert request.params.seed is not None, "a request has its seed when it is admitted"
        stop = self._stop_rule(request)
        policy = Policy(request.params, stop.ends, self._choose)
        constraint = request.params.constraint
        guide = None if constraint is None else self._guides.begin(constraint)
        self._owners.admit(admission.sequence, request.prompt, admission.reused)
        if guide is not None:
            self._owners.grammars.admit(admission.sequence, len(request.prompt), guide)
        self._lead.admitted(admission)
        self._live[admission.sequence] = Live(
            request, request.params.seed, policy, stop, admission.pinned, admission.reused
        )

    def _forward(
        self,
        spans: Sequence[Span],
        proposals: Sequence[Proposal],
        logit_rows: Sequence[int] | None,
    ) -> Tensor:
        tokens = self._owners.tokens
        ids = [
            token
            for span, proposal in zip(spans, proposals, strict=True)
            for token in tokens.rows(span, proposal.ids)
        ]
        prompts = [len(self._live[span.sequence].request.prompt) for span in spans]
        self._probe.at(Site.INPUTS)
        batch = self._builder.build(spans, ids, logit_rows, prompts)
        self._probe.at(Site.FORWARD)
        logits = self._speculation.forward(self._model, batch, self._state)
        spoiled = self._probe.at(Site.LOGITS) is Act.NAN
        return torch.full_like(logits, torch.nan) if spoiled else logits

    def _verify(
        self, spans: Sequence[Span], proposals: Sequence[Proposal], logits: Tensor
    ) -> list[Answer | None]:
        """Return the answer for every span that samples, None for the others."""
        questions = [
            Question(
                self._live[s.sequence],
                self._owners.tokens.known(s.sequence),
                p,
                self._allowed(s, p),
            )
            for s, p in zip(spans, proposals, strict=True)
            if s.samples
        ]
        self._probe.at(Site.SAMPLE)
        answers = iter(judge(logits, questions) if questions else [])
        return [next(answers) if span.samples else None for span in spans]

    def _allowed(self, span: Span, proposal: Proposal) -> Masks | None:
        """Return what a grammar allows behind the rows that are sampled from, if there is one.

        Asked behind the forward, so that a device computes meanwhile.
        """
        if not self._owners.grammars.holds(span.sequence):
            return None
        ids = self._owners.tokens.rows(span, proposal.ids)
        return self._owners.grammars.masks(span, ids)

    def _trim(
        self, span: Span, proposal: Proposal, answer: Answer | None, scored: Tensor | None
    ) -> Emission:
        """Apply the stop rules before the commit: a stop at token j keeps certain + j - 1 rows.

        What closes a thought is known without a draw, and becomes rows of the next span.
        """
        live = self._live[span.sequence]
        prompt = () if scored is None else score(scored, span, live)
        if answer is None:
            ends = live.stop.left == 0 and span.end == len(live.request.prompt)
            finish = FinishReason.LENGTH if ends else None
            return Emission(span.certain, finish=finish, prompt_logprobs=prompt)
        drawn, closing = live.stop.close((*proposal.ids[: answer.accepted], answer.token))
        emitted, finish = live.stop.cut((*drawn, *closing))
        own = min(len(emitted), len(drawn))
        forced = len(emitted) - own
        sure = (TokenLogprob(0.0),) * forced if live.request.params.logprobs is not None else ()
        return Emission(
            kept=span.certain + own - 1,
            tokens=emitted,
            finish=finish,
            verified=span.proposals,
            accepted=min(answer.accepted, own),
            logprobs=(*answer.logprobs[:own], *sure),
            forced=forced,
            prompt_logprobs=prompt,
        )

    def _settle(self, span: Span, emission: Emission) -> Emission:
        """Take in what a committed span brought; a request that cannot be is lost."""
        try:
            return self._finish(span, emission)
        except Exception as fault:  # whatever a library raises
            return self._lose(span.sequence, fault)

    def _finish(self, span: Span, emission: Emission) -> Emission:
        self._owners.emit(span.sequence, emission.tokens)  # first, as ranks that follow do
        self._probe.at(Site.LEARN)
        live = self._live[span.sequence]
        live.stop.count(emission.tokens)
        pause = self._speculation.learn(span, emission.accepted)
        if emission.finish is not None:
            self.release(span.sequence)
        reused = live.reused if span.start == live.reused else 0
        if pause is None and not reused:
            return emission
        return replace(emission, pause=pause, reused=reused)

    def _lose(self, sequence: SequenceId, fault: Exception) -> Emission:
        """End a request that raised."""
        log.error("request %d is lost", sequence, exc_info=fault)
        self.release(sequence)
        line = " ".join(f"{type(fault).__name__}: {fault}".split())
        return Emission(0, finish=FinishReason.ERROR, fault=line)
