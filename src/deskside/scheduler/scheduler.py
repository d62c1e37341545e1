"""Who runs in the next step, and with how many rows.

First come, first served. Every running request that has its prompt behind it gets one row a step;
the rows that are left go to prompts, the oldest first. While anybody waits for a next token a step
stays short; otherwise a prompt chunk may be long. Knows no tensors.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from deskside.core import Admission, Request, SequenceId, Span, StepOutput, StepPlan
from deskside.scheduler.admission import Admissions

__all__ = ["Scheduler", "StepLimits"]

SEED_BITS = 63

SCORED_ROWS = 128
"""Most prompt rows of a step that get logits: a row of them is as wide as the vocabulary."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Rows of a step: a prompt chunk alone, and a whole step while others stream."""

    prefill_chunk: int
    step_tokens: int
    proposals: int = 0
    """Most rows that a drafter adds to the one of a request that streams."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    sequence: SequenceId
    request: Request
    pinned: bool


@dataclass(slots=True)
class _Running:
    sequence: SequenceId
    request: Request
    pages: int
    frontier: int = 0
    emitted: int = 0

    @property
    def prompt_left(self) -> int:
        return max(0, len(self.request.prompt) - self.frontier)

    @property
    def known(self) -> int:
        """Tokens that are known and not yet rows: the anchor, and what was forced behind it."""
        return len(self.request.prompt) + self.emitted - self.frontier

    def span(self, rows: int) -> Span:
        ends_prompt = rows >= self.prompt_left
        samples = ends_prompt and self.request.params.max_tokens > 0
        return Span(self.sequence, self.frontier, rows, 0, samples)


class Scheduler:
    """Waiting and running requests of one engine."""

    def __init__(
        self,
        admissions: Admissions,
        limits: StepLimits,
        reusable: Callable[[tuple[int, ...]], int] | None = None,
    ) -> None:
        """Begin with nobody; `reusable` says how many tokens of a prompt need no forward."""
        self._reusable = reusable
        self._admissions = admissions
        self._limits = limits
        self._waiting: deque[_Waiting] = deque()
        self._running: dict[SequenceId, _Running] = {}
        self._aborts: list[SequenceId] = []
        self._next_sequence = 0
        self._next_step = 0

    @property
    def greedy_only(self) -> bool:
        """Whether sampled requests are refused."""
        return self._admissions.greedy_only

    @property
    def running(self) -> int:
        """Requests that were admitted and have not ended."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that are queued."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether nobody waits, runs or leaves."""
        return not (self._waiting or self._running or self._aborts)

    def submit(self, request: Request) -> tuple[SequenceId, int]:
        """Queue a request; return its sequence and its seed, drawn where it has none.

        Raises:
            InputError: the request could never run; a ContextLengthError where it is too long.
        """
        self._admissions.check(request)
        seed = request.params.seed
        pinned = seed is not None
        if seed is None:
            seed = secrets.randbits(SEED_BITS)
        request = replace(request, params=replace(request.params, seed=seed))
        sequence = SequenceId(self._next_sequence)
        self._next_sequence += 1
        self._waiting.append(_Waiting(sequence, request, pinned))
        return sequence, seed

    def abort(self, sequence: SequenceId) -> None:
        """Let a request leave before the next step; unknown and ended ones are ignored."""
        if sequence in self._running:
            self._admissions.give_back(self._running.pop(sequence).pages)
            self._aborts.append(sequence)
        else:
            self._waiting = deque(w for w in self._waiting if w.sequence != sequence)

    def plan_step(self) -> StepPlan:
        """Plan the next step; it has no spans when there is nothing to run."""
        admissions = tuple(self._admit())
        plan = StepPlan(self._next_step, tuple(self._spans()), admissions, tuple(self._aborts))
        self._aborts.clear()
        self._next_step += 1
        return plan

    def learn(self, output: StepOutput) -> None:
        """Take in what a step did."""
        for sequence, emission in output.emissions.items():
            running = self._running.get(sequence)
            if running is None:
                continue
            running.frontier += emission.kept
            running.emitted += len(emission.tokens)
            if emission.finish is not None:
                self._admissions.give_back(self._running.pop(sequence).pages)

    def _admit(self) -> Iterator[Admission]:
        while self._waiting:
            first = self._waiting[0]
            pages = self._admissions.take(first.request)
            if pages is None:
                return
            self._waiting.popleft()
            reused = self._reused(first.request)
            self._running[first.sequence] = _Running(first.sequence, first.request, pages, reused)
            yield Admission(first.sequence, first.request, pages, first.pinned, reused)

    def _reused(self, request: Request) -> int:
        """Return the tokens to take up; a request that asks about its prompt needs every row."""
        if self._reusable is None or request.params.prompt_logprobs:
            return 0
        return self._reusable(request.prompt)

    def _spans(self) -> Iterator[Span]:
        streaming = [one for one in self._running.values() if not one.prompt_left]
        yield from (one.span(one.known) for one in streaming)
        rows = self._limits.prefill_chunk
        if streaming:
            taken = len(streaming) * (1 + self._limits.proposals)
            rows = min(rows, max(1, self._limits.step_tokens - taken))
        scored = SCORED_ROWS
        for one in self._running.values():
            asks = one.request.params.prompt_logprobs
            chunk = min(rows, one.prompt_left, scored if asks else rows)
            if chunk:
                rows -= chunk
                scored -= chunk if asks else 0
                yield one.span(chunk)
