"""What the leader of several ranks tells the others, one JSON object a record.

Owns the shapes alone. A step is three records: the work with its admissions, the choice of
proposals, and the word that ends it. Followers answer none of them.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from deskside.config.engine import EngineOptions

__all__ = ["RECORD", "Admitted", "Choice", "Leave", "Record", "Rows", "Setup", "Word", "Work"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Setup(_Record):
    """What every rank loads, with all that auto could mean decided."""

    kind: Literal["setup"] = "setup"
    model: str
    options: EngineOptions
    patience: float
    """Seconds after which a rank that does not answer in a step counts as lost."""


class Admitted(_Record):
    """A sequence enters with its prompt."""

    sequence: int
    prompt: tuple[int, ...]


class Rows(_Record):
    """A span of certain rows; `drafts` says whether proposals are drafted behind them.

    The first `scored` rows get logits: the request asks about its prompt.
    """

    sequence: int
    start: int
    certain: int
    samples: bool
    drafts: bool
    scored: int = 0


class Work(_Record):
    """What a step runs, after who left and who entered since the last one.

    `digest` is taken over what was decided and what the owners of state hold of these sequences: a
    rank that finds another one is not the same machine any more.
    """

    kind: Literal["work"] = "work"
    step: int
    gone: tuple[int, ...]
    admitted: tuple[Admitted, ...]
    spans: tuple[Rows, ...]
    digest: int


class Choice(_Record):
    """The proposals to verify behind each span."""

    kind: Literal["choice"] = "choice"
    proposals: tuple[tuple[int, ...], ...]


class Word(_Record):
    """How each span ended: the rows kept and the tokens emitted; none where the step failed."""

    kind: Literal["word"] = "word"
    kept: tuple[int, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    failed: bool = False


class Leave(_Record):
    """End the rank."""

    kind: Literal["leave"] = "leave"


Record: TypeAlias = Annotated[Setup | Work | Choice | Word | Leave, Field(discriminator="kind")]

RECORD: TypeAdapter[Record] = TypeAdapter(Record)
