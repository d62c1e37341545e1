"""What the leader of several ranks tells the others.

Owns the shapes and their bytes. Setup is JSON, said once. A step is two or three records of plain
64-bit numbers, because they are read between one token and the next: the work with its admissions,
the choice of proposals where any were drafted, and the word that ends it. Followers answer none.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict

from deskside.config.engine import EngineOptions

__all__ = [
    "Admitted",
    "Choice",
    "Leave",
    "Record",
    "Rows",
    "Setup",
    "Word",
    "Work",
    "pack",
    "unpack",
]

Numbers: TypeAlias = Iterator[int]


class Setup(BaseModel):
    """What every rank loads, with all that auto could mean decided."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    options: EngineOptions
    patience: float
    """Seconds after which a rank that does not answer in a step counts as lost."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence enters with its prompt, of which `reused` tokens were computed before."""

    sequence: int
    prompt: tuple[int, ...]
    reused: int = 0

    def numbers(self) -> list[int]:
        """Return the record as numbers."""
        return [self.sequence, self.reused, *_listed(self.prompt)]

    @staticmethod
    def read(numbers: Numbers) -> "Admitted":
        """Take a record from numbers."""
        sequence, reused = next(numbers), next(numbers)
        return Admitted(sequence, _list(numbers), reused)


@dataclass(frozen=True, slots=True)
class Rows:
    """A span of certain rows; `drafts` says whether proposals are drafted behind them.

    The first `scored` rows get logits: the request asks about its prompt.
    """

    sequence: int
    start: int
    certain: int
    samples: bool
    drafts: bool
    scored: int = 0

    def numbers(self) -> list[int]:
        """Return the record as numbers."""
        flags = self.samples | self.drafts << 1
        return [self.sequence, self.start, self.certain, flags, self.scored]

    @staticmethod
    def read(numbers: Numbers) -> "Rows":
        """Take a record from numbers."""
        sequence, start, certain, flags, scored = islice(numbers, 5)
        return Rows(sequence, start, certain, bool(flags & 1), bool(flags & 2), scored)


@dataclass(frozen=True, slots=True)
class Work:
    """What a step runs, after who left and who entered since the last one.

    `digest` is taken over what was decided and what the owners of state hold of these sequences: a
    rank that finds another one is not the same machine any more.
    """

    step: int
    gone: tuple[int, ...]
    admitted: tuple[Admitted, ...]
    spans: tuple[Rows, ...]
    digest: int

    def numbers(self) -> list[int]:
        """Return the record as numbers."""
        admitted = [number for one in self.admitted for number in one.numbers()]
        spans = [number for rows in self.spans for number in rows.numbers()]
        head = [self.step, self.digest, *_listed(self.gone)]
        return [*head, len(self.admitted), *admitted, len(self.spans), *spans]

    @staticmethod
    def read(numbers: Numbers) -> "Work":
        """Take a record from numbers."""
        step, digest = islice(numbers, 2)
        gone = _list(numbers)
        admitted = tuple(Admitted.read(numbers) for _ in range(next(numbers)))
        spans = tuple(Rows.read(numbers) for _ in range(next(numbers)))
        return Work(step, gone, admitted, spans, digest)


@dataclass(frozen=True, slots=True)
class Choice:
    """The proposals to verify behind each span."""

    proposals: tuple[tuple[int, ...], ...]

    def numbers(self) -> list[int]:
        """Return the record as numbers."""
        return _lists(self.proposals)

    @staticmethod
    def read(numbers: Numbers) -> "Choice":
        """Take a record from numbers."""
        return Choice(tuple(_list(numbers) for _ in range(next(numbers))))


@dataclass(frozen=True, slots=True)
class Word:
    """How each span ended: the rows kept and the tokens emitted; none where the step failed."""

    kept: tuple[int, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    failed: bool = False

    def numbers(self) -> list[int]:
        """Return the record as numbers."""
        return [int(self.failed), *_listed(self.kept), *_lists(self.tokens)]

    @staticmethod
    def read(numbers: Numbers) -> "Word":
        """Take a record from numbers."""
        failed, kept = bool(next(numbers)), _list(numbers)
        return Word(kept, tuple(_list(numbers) for _ in range(next(numbers))), failed)


@dataclass(frozen=True, slots=True)
class Leave:
    """End the rank."""

    def numbers(self) -> list[int]:
        """Return the record as numbers."""
        return []

    @staticmethod
    def read(_numbers: Numbers) -> "Leave":
        """Take a record from numbers."""
        return Leave()


Record: TypeAlias = Work | Choice | Word | Leave

KINDS: tuple[type[Record], ...] = (Work, Choice, Word, Leave)


def pack(record: Record) -> bytes:
    """Return a record as bytes."""
    return array("q", [KINDS.index(type(record)), *record.numbers()]).tobytes()


def unpack(told: bytes) -> Record:
    """Return the record of these bytes.

    Raises:
        ValueError: they are no record.
    """
    numbers = iter(array("q", told))
    try:
        record = KINDS[next(numbers)].read(numbers)
    except (StopIteration, RuntimeError, IndexError, ValueError) as error:
        raise ValueError("a record ends early or is of no known kind") from error
    if next(numbers, None) is not None:
        raise ValueError(f"numbers are left behind a {type(record).__name__}")
    return record


def _listed(numbers: Sequence[int]) -> list[int]:
    return [len(numbers), *numbers]


def _lists(lists: Sequence[Sequence[int]]) -> list[int]:
    return [len(lists), *[number for one in lists for number in _listed(one)]]


def _list(numbers: Numbers) -> tuple[int, ...]:
    count = next(numbers)
    found = tuple(islice(numbers, count))
    if len(found) != count:
        raise ValueError(count)
    return found
