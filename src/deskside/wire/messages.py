"""What crosses between the HTTP process and the engine's leader: one JSON object a message.

Owns the shapes alone. Requests and emissions are the records of `core`, checked again where they
arrive. Nothing is pickled, so a message can do no more than its fields say.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from deskside.config.engine import EngineOptions
from deskside.core import Emission, RankLoad, RankReport, Request
from deskside.injection import Injection

__all__ = [
    "COMMAND",
    "EVENT",
    "Abort",
    "Accepted",
    "Alive",
    "Arm",
    "Command",
    "Event",
    "Failed",
    "Gauges",
    "Order",
    "Progress",
    "Ready",
    "Refused",
    "Step",
    "Stop",
    "Submit",
]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Order(_Message):
    """What a worker is started with: where to talk, and what to load."""

    parent: int
    """Process id of who started it; the worker ends when that process does."""
    commands: str
    """Address of the socket on which commands come."""
    events: str
    """Address of the socket on which events go."""
    model: str
    options: EngineOptions


class Submit(_Message):
    """Queue sequences of one prompt: it is sent once, however many continuations are wanted.

    `keys` name them in everything that follows; their choices count up from the request's.
    """

    kind: Literal["submit"] = "submit"
    keys: list[str]
    request: Request


class Abort(_Message):
    """Let sequences leave; unknown and ended ones are ignored."""

    kind: Literal["abort"] = "abort"
    keys: list[str]


class Arm(_Message):
    """Let faults happen at sites of the engine, for tests; what was armed before is forgotten."""

    kind: Literal["arm"] = "arm"
    injections: list[Injection]


class Stop(_Message):
    """End the worker, whatever runs."""

    kind: Literal["stop"] = "stop"


class Gauges(_Message):
    """How the engine stands, after a step or while it waits."""

    running: int = 0
    waiting: int = 0
    free_pages: int = 0
    free_slots: int = 0
    cached_pages: int = 0
    """Free pages that a prompt may find."""
    snapshots: int = 0
    step: int = 0


class Progress(_Message):
    """How far a start has come."""

    kind: Literal["progress"] = "progress"
    phase: str
    done: int = 0
    total: int = 0
    loads: tuple[RankLoad, ...] = ()
    """How far every rank is, while weights are read."""


class Ready(_Message):
    """The warm-up token came through; the numbers that requests are judged by."""

    kind: Literal["ready"] = "ready"
    kv_tokens: int
    kv_pages: int
    max_running: int
    max_positions: int
    vocab: int
    speculates: bool
    greedy_only: bool
    """Whether the width rule bears no sampled request."""
    gauges: Gauges
    ranks: tuple[RankReport, ...] = ()


class Accepted(_Message):
    """A sequence is queued; `seed` is what its draws follow from."""

    kind: Literal["accepted"] = "accepted"
    key: str
    seed: int


class Refused(_Message):
    """A sequence was not queued, or ended by a fault of its own."""

    kind: Literal["refused"] = "refused"
    key: str
    code: str
    message: str


class Step(_Message):
    """What a step brought, by key."""

    kind: Literal["step"] = "step"
    emissions: dict[str, Emission]
    gauges: Gauges
    rows: int
    seconds: float


class Alive(_Message):
    """Nothing to do, and still there."""

    kind: Literal["alive"] = "alive"
    gauges: Gauges


class Failed(_Message):
    """The worker ends, with the line and the exit code of a command that failed."""

    kind: Literal["failed"] = "failed"
    exit_code: int
    message: str


Command: TypeAlias = Annotated[Submit | Abort | Arm | Stop, Field(discriminator="kind")]
Event: TypeAlias = Annotated[
    Progress | Ready | Accepted | Refused | Step | Alive | Failed, Field(discriminator="kind")
]

# Names and tokens of requests never come again: kept texts would only fill pydantic's cache.
FORGETS = ConfigDict(cache_strings="none")
COMMAND: TypeAdapter[Command] = TypeAdapter(Command, config=FORGETS)
EVENT: TypeAdapter[Event] = TypeAdapter(Event, config=FORGETS)
