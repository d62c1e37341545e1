"""The nouns that every layer shares: requests, spans, step plans and step outputs.

Plain immutable records without torch, so that the server, the planner and the scheduler can use
them. A span is the one shape of work: rows that will stay, then rows of which a prefix may stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from deskside.errors import InputError

__all__ = [
    "Acceptance",
    "Admission",
    "Constraint",
    "Emission",
    "FinishReason",
    "Pause",
    "RankLoad",
    "RankReport",
    "Request",
    "SamplingParams",
    "SequenceId",
    "Span",
    "StepOutput",
    "StepPlan",
    "Thought",
    "TokenLogprob",
]

MOST_LOGPROBS = 20
"""Likeliest tokens that a request may ask for beside each of its own."""

SequenceId = NewType("SequenceId", int)
"""Names one sequence for as long as it lives; never reused within a process."""


class FinishReason(StrEnum):
    """Why a sequence ended; ERROR says that a fault of ours ended it and no other."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Pause(StrEnum):
    """What the fallback controller of a request decided: to pause drafting, or to try it again."""

    TRIP = "trip"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Thought:
    """A thought that a text begins inside of, and when it is closed for the model.

    It ends by itself behind the first of the texts `ends`. Behind `limit` tokens, or where its end
    repeats one piece `repeats` times (0: never looked at), the tokens `close` are put there; they
    must spell one of the ends.
    """

    close: tuple[int, ...]
    ends: tuple[str, ...]
    limit: int | None = None
    repeats: int = 0

    def __post_init__(self) -> None:
        """Refuse what could not be obeyed, naming the option."""
        if self.limit is not None and self.limit < 1:
            raise InputError(f"thinking_budget must be at least 1, got {self.limit}")
        if self.repeats != 0 and not 2 <= self.repeats <= 1000:
            raise InputError(
                f"repetition_guard must be 0 (off) or lie in [2, 1000], got {self.repeats}"
            )


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a text has to be: a grammar, as `text.grammar` writes it.

    It holds from the text's first token on or, with `after`, from the token behind that text, which
    then has to come: before it the sequence can't end. Meanwhile no token completes one of
    `without`.
    """

    grammar: str
    after: str = ""
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn for one request.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 leave the distribution whole,
    penalties of 0 and a `repetition_penalty` of 1 leave the logits alone. `logit_bias` holds pairs
    of a token and what is added to its logit. Before `min_tokens` tokens no end or stop token is
    drawn, and no stop string ends the text. With `stop_after` stop strings count only behind that
    text, such as the end of reasoning. `speculate.policy` states the formulas. `logprobs` asks for
    the log probability of every emitted token and for that many of the likeliest tokens beside it;
    they are the model's own, at temperature 1 and before any other option. With `prompt_logprobs`
    the prompt's tokens get theirs too, all but the first, which follows nothing; then `max_tokens`
    may be 0. `thought` says when reasoning is closed for the model, and `constraint` what may be
    drawn at all. A `seed` of None is replaced by a random one at submission, which is returned with
    the result.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    stop_after: str = ""
    logprobs: int | None = None
    thought: Thought | None = None
    prompt_logprobs: bool = False
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        """Refuse values outside their range, naming the option."""
        if not 0.0 <= self.temperature <= 100.0:  # also refuses NaN
            raise InputError(f"temperature must lie in [0, 100], got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top-p must lie in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise InputError(f"top-k must be 0 (off) or positive, got {self.top_k}")
        least = 0 if self.prompt_logprobs else 1
        if self.max_tokens < least:
            raise InputError(f"max-tokens must be at least {least}, got {self.max_tokens}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise InputError(f"seed must lie in [0, 2^63), got {self.seed}")
        if any(not text for text in self.stop):
            raise InputError("stop must not hold an empty string: it would end every text at once")
        self._check_policy()

    def _check_policy(self) -> None:
        if not 0.0 <= self.min_p <= 1.0:
            raise InputError(f"min-p must lie in [0, 1], got {self.min_p}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise InputError(f"{name} must lie in [-2, 2], got {getattr(self, name)}")
        if not 0.0 < self.repetition_penalty <= 10.0:
            raise InputError(
                f"repetition_penalty must lie in (0, 10], got {self.repetition_penalty}"
            )
        tokens = [token for token, _ in self.logit_bias]
        if len(set(tokens)) < len(tokens) or any(token < 0 for token in tokens):
            raise InputError("logit_bias must name each token once, by an id of 0 or more")
        if any(not -100.0 <= bias <= 100.0 for _, bias in self.logit_bias):
            raise InputError("logit_bias must lie in [-100, 100] for every token")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise InputError(
                f"min-tokens must lie in [0, max-tokens = {self.max_tokens}], got {self.min_tokens}"
            )
        if self.constraint is not None and self.ignore_eos:
            raise InputError("ignore_eos cannot go with a response format: a grammar has an end")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise InputError(f"logprobs must lie in [0, {MOST_LOGPROBS}], got {self.logprobs}")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt as token ids, and how to continue it."""

    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    choice: int = 0

    @property
    def limit(self) -> int:
        """Most tokens the sequence can ever hold: prompt and output."""
        return len(self.prompt) + self.params.max_tokens


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What speculation brought to one request, by counters that start with it."""

    steps: int = 0
    """Decode steps, those of the target alone among them."""
    verified: int = 0
    """Proposals that the target looked at."""
    accepted: int = 0
    """Proposals that stayed."""
    trips: int = 0
    """Times that drafting was paused."""
    probes: int = 0
    """Times that it was tried again."""

    def after(self, emission: "Emission") -> "Acceptance":
        """Return the counters one decode step later."""
        return Acceptance(
            self.steps + 1,
            self.verified + emission.verified,
            self.accepted + emission.accepted,
            self.trips + (emission.pause is Pause.TRIP),
            self.probes + (emission.pause is Pause.PROBE),
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence in one forward.

    Rows start at position `start`, which is the sequence's frontier. The first `certain` rows will
    stay, then come `proposals` rows of which an unknown prefix will. `samples` says whether a token
    is drawn after the last row that stays.
    """

    sequence: SequenceId
    start: int
    certain: int
    proposals: int = 0
    samples: bool = True

    def __post_init__(self) -> None:
        """Hold the shape that every state owner relies on."""
        assert self.start >= 0
        assert self.certain >= 1
        assert self.proposals >= 0
        assert self.samples or self.proposals == 0

    @property
    def rows(self) -> int:
        """Rows this span puts into the forward."""
        return self.certain + self.proposals

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + self.rows


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence enters: its id, its request and the pages set aside for it.

    `pinned` says that the request came with its own seed: its tokens may then depend on nothing
    that another run would not repeat. The first `reused` tokens of its prompt were computed before.
    """

    sequence: SequenceId
    request: Request
    pages: int
    pinned: bool = True
    reused: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does, the same on every rank: who leaves, who enters, which rows run."""

    step: int
    spans: tuple[Span, ...]
    admissions: tuple[Admission, ...] = ()
    aborts: tuple[SequenceId, ...] = ()


@dataclass(frozen=True, slots=True)
class RankLoad:
    """How far a rank's load is: bytes read and bytes to read, 0 before it has begun."""

    rank: int
    nodes: tuple[int, ...]
    """Memory nodes that it is bound to, as far as known."""
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank holds, in bytes, who computes for it, and where its banks lie.

    `device_bytes` are slots of experts; `resident` holds bytes of the banks by memory node as the
    kernel tells it, and is empty where it does not.
    """

    rank: int
    nodes: tuple[int, ...]
    bank_bytes: int
    other_bytes: int
    device_bytes: int
    workers: int
    coordinator: tuple[int, ...]
    resident: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log probability of an emitted token, and the likeliest tokens in its place with theirs.

    Equals stand in the order of their ids.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Emission:
    """What one span brought: the rows kept, the tokens emitted, and whether that was the end.

    `verified` and `accepted` count its proposals; those behind a stop are not counted as accepted.
    `logprobs` has one entry a token where the request asks, else none; `prompt_logprobs` one for
    each token of the prompt that follows a row of the span. `fault` says in one line what went
    wrong where `finish` is ERROR; then nothing was kept or emitted. The last `forced` of the tokens
    were not drawn; they become rows of the sequence's next span. `reused` counts, with a sequence's
    first span, the tokens before it that were computed earlier.
    """

    kept: int
    tokens: tuple[int, ...] = ()
    finish: FinishReason | None = None
    verified: int = 0
    accepted: int = 0
    pause: Pause | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    fault: str | None = None
    forced: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    reused: int = 0


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The outcome of a step, by sequence."""

    step: int
    emissions: Mapping[SequenceId, Emission]
