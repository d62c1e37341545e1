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
    "Admission",
    "Emission",
    "FinishReason",
    "Request",
    "SamplingParams",
    "SequenceId",
    "Span",
    "StepOutput",
    "StepPlan",
]

SequenceId = NewType("SequenceId", int)
"""Names one sequence for as long as it lives; never reused within a process."""


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn for one request.

    `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave the distribution whole. A `seed` of
    None is replaced by a random one at submission, which is returned with the result.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Refuse values outside their range, naming the option."""
        if not 0.0 <= self.temperature <= 100.0:  # also refuses NaN
            raise InputError(f"temperature must lie in [0, 100], got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top-p must lie in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise InputError(f"top-k must be 0 (off) or positive, got {self.top_k}")
        if self.max_tokens < 1:
            raise InputError(f"max-tokens must be at least 1, got {self.max_tokens}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise InputError(f"seed must lie in [0, 2^63), got {self.seed}")
        if any(not text for text in self.stop):
            raise InputError("stop must not hold an empty string: it would end every text at once")


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
    """A sequence enters: its id, its request and the pages set aside for it."""

    sequence: SequenceId
    request: Request
    pages: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does, the same on every rank: who leaves, who enters, which rows run."""

    step: int
    spans: tuple[Span, ...]
    admissions: tuple[Admission, ...] = ()
    aborts: tuple[SequenceId, ...] = ()


@dataclass(frozen=True, slots=True)
class Emission:
    """What one span brought: the rows kept, the tokens emitted, and whether that was the end."""

    kept: int
    tokens: tuple[int, ...] = ()
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The outcome of a step, by sequence."""

    step: int
    emissions: Mapping[SequenceId, Emission]
