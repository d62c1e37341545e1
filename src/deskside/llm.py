"""Offline use: open a checkpoint, continue prompts, one at a time or many together.

    with LLM.open("deskside-mini") as llm:
        for delta in llm.stream("def fibonacci(n):"):
            print(delta.text, end="")

Owns the loop of plan, step and learn for a process that serves itself.
"""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from deskside.config.engine import EngineOptions
from deskside.core import (
    Acceptance,
    Emission,
    FinishReason,
    Request,
    SamplingParams,
    SequenceId,
    TokenLogprob,
)
from deskside.errors import DesksideError
from deskside.machine.placement import Placement
from deskside.planning.plan import Plan
from deskside.runtime.build import Runtime, build
from deskside.runtime.ranks import Listener
from deskside.scheduler.scheduler import SEED_BITS
from deskside.text.stops import TextStream
from deskside.text.tokenizer import Tokenizer

__all__ = ["LLM", "Delta", "Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished continuation, with its counts and times in seconds.

    `prefill_s` runs from submission to the first token, `decode_s` from there to the last one.
    `token_ids` holds every emitted token, the end token among them; `logprobs` has one entry for
    each where they were asked for, and `prompt_logprobs` one for each token of the prompt but the
    first. `cached_tokens` of the prompt were computed for an earlier one. Where `finish` is ERROR,
    `fault` is one line about it.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish: FinishReason
    seed: int
    prefill_s: float
    decode_s: float
    first_token_s: float
    acceptance: Acceptance
    logprobs: tuple[TokenLogprob, ...] = ()
    fault: str | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added: certain text and the tokens behind it; the last has a result.

    `verified` proposals were looked at in the step, and `accepted` of them stayed.
    """

    text: str
    tokens: tuple[int, ...]
    finish: FinishReason | None = None
    result: Result | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    verified: int = 0
    accepted: int = 0


class LLM:
    """A loaded checkpoint."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @staticmethod
    def open(
        model: str = "deskside-mini",
        options: EngineOptions | None = None,
        progress: Listener | None = None,
    ) -> "LLM":
        """Plan, then load a checkpoint.

        Args:
            model: a folder in the 0731 layout, or the name of a checkpoint that ships.
            options: how to load and run it.
            progress: is told how far the load of every rank is, after each tensor.

        Raises:
            CheckpointError: the folder does not hold a whole checkpoint.
            CapacityError: it does not fit; nothing was read.
        """
        return LLM(build(model, options or EngineOptions(), progress))

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer."""
        return self._runtime.tokenizer

    @property
    def plan(self) -> Plan:
        """The plan that was obeyed."""
        return self._runtime.plan

    @property
    def placement(self) -> Placement:
        """Who computes where. The calling thread was left as it was."""
        return self._runtime.placement

    @property
    def state_bytes(self) -> int:
        """Bytes of the allocated cache; the plan's figure."""
        return self._runtime.state_bytes

    def stream(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None
    ) -> Iterator[Delta]:
        """Continue a prompt, step by step; closing the iterator early frees what it held.

        Args:
            prompt: text (its first token will be the model's start token) or token ids.
            params: how to draw.

        Raises:
            InputError: the prompt can't be taken.
            DesksideError: a fault ended the request.
        """
        params = params or SamplingParams()
        sequence, progress = self._submit(prompt, params)
        try:
            while progress.finish is None:
                emission = self._step().get(sequence)
                if emission is not None and emission.fault is not None:
                    raise DesksideError(f"internal fault: {emission.fault}")
                if emission is None:
                    continue
                delta = progress.take(emission)
                if emission.tokens or emission.finish is not None:
                    yield delta
        finally:
            self._leave([sequence])

    def generate(
        self, prompts: Sequence[str | Sequence[int]], params: SamplingParams | None = None
    ) -> list[Result]:
        """Continue several prompts together; results in the order of the prompts.

        A fault ends the one request it belongs to: its result says so, the others are whole.

        Raises:
            InputError: a prompt can't be taken.
        """
        params = params or SamplingParams()
        running: dict[SequenceId, _Progress] = {}
        try:
            for prompt in prompts:
                sequence, progress = self._submit(prompt, params)
                running[sequence] = progress
            while any(progress.finish is None for progress in running.values()):
                for sequence, emission in self._step().items():
                    running[sequence].take(emission)
        finally:
            self._leave(list(running))
        return [progress.result() for progress in running.values()]

    def _submit(
        self, prompt: str | Sequence[int], params: SamplingParams
    ) -> tuple[SequenceId, "_Progress"]:
        tokenizer = self.tokenizer
        if isinstance(prompt, str):
            prompt = tokenizer.prompt(prompt)
        if params.seed is None and params.temperature > 0:
            # Drawn here and not by the scheduler, which lets requests without a seed of their own
            # share a budget of rows: the seed that is returned gives this text again.
            params = replace(params, seed=secrets.randbits(SEED_BITS))
        request = Request(tuple(prompt), params)
        sequence, seed = self._runtime.scheduler.submit(request)
        text = TextStream(tokenizer.text_bytes, params.stop, params.stop_after, params.min_tokens)
        return sequence, _Progress(len(request.prompt), seed, text)

    def _step(self) -> Mapping[SequenceId, Emission]:
        plan = self._runtime.scheduler.plan_step()
        output = self._runtime.engine.step(plan)
        self._runtime.scheduler.learn(output)
        return output.emissions

    def _leave(self, sequences: Sequence[SequenceId]) -> None:
        """Free what unfinished sequences hold, also after an interrupted step."""
        for sequence in sequences:
            self._runtime.scheduler.abort(sequence)
            self._runtime.engine.release(sequence)

    def close(self) -> None:
        """End the other ranks, where there are any; tensors go with the object."""
        self._runtime.close()

    def __enter__(self) -> Self:
        """Return the model itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


@dataclass(slots=True)
class _Progress:
    """A running continuation, as its reader sees it."""

    prompt_tokens: int
    seed: int
    text: TextStream
    shown: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    started: float = field(default_factory=time.perf_counter)
    first: float = 0.0
    last: float = 0.0
    acceptance: Acceptance = field(default_factory=Acceptance)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    fault: str | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    cached: int = 0

    def take(self, emission: Emission) -> Delta:
        """Add a step's tokens and return what became certain."""
        self.prompt_logprobs += emission.prompt_logprobs
        self.cached += emission.reused
        self.last = time.perf_counter()
        if self.tokens:
            self.acceptance = self.acceptance.after(emission)
        if emission.tokens or emission.finish is not None:
            self.first = self.first or self.last
        self.tokens += emission.tokens
        self.logprobs += emission.logprobs
        self.finish, self.fault = emission.finish, emission.fault
        text = self.text.feed(emission.tokens)
        if self.finish is not None:
            text += self.text.finish()
        self.shown.append(text)
        result = None if self.finish is None else self.result()
        return Delta(
            text,
            emission.tokens,
            self.finish,
            result,
            emission.logprobs,
            emission.verified,
            emission.accepted,
        )

    def result(self) -> Result:
        """Return the finished continuation."""
        assert self.finish is not None
        return Result(
            text="".join(self.shown),
            token_ids=tuple(self.tokens),
            prompt_tokens=self.prompt_tokens,
            finish=self.finish,
            seed=self.seed,
            prefill_s=self.first - self.started,
            decode_s=self.last - self.first,
            first_token_s=self.first - self.started,
            acceptance=self.acceptance,
            logprobs=tuple(self.logprobs),
            fault=self.fault,
            prompt_logprobs=tuple(self.prompt_logprobs),
            cached_tokens=self.cached,
        )
