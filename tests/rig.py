"""A bare forward over real state owners: what the equivalence and oracle tests drive."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deskside.core import SequenceId, Span
from deskside.distributed.group import ALONE, LEADER, Group
from deskside.engine.inputs import BatchBuilder
from deskside.engine.owners import Owners
from deskside.kernels import native
from deskside.layout.kv import KvFormat
from deskside.model.flash import Flash
from deskside.ops.linear import Weight
from deskside.ops.opset import OpSet
from deskside.spec import ModelSpec
from deskside.state.kv import KvState


def compiled_in_floats() -> OpSet:
    """Return the compiled bodies, but prompt rows' experts by their definition in float32.

    For tests that judge the mathematics: the compiled experts round activations to 16 bits.
    """
    return OpSet().replaced({**native.bodies(), "moe": OpSet().moe})


@dataclass(frozen=True)
class Part:
    """Rows to run for one sequence: token ids, how many of them are proposals, how many stay.

    `generated` says the kind of all of them.
    """

    sequence: int
    ids: Sequence[int]
    proposals: int = 0
    kept: int | None = None
    generated: bool = False


@dataclass
class Rig:
    """A model with room for a few sequences; logits of every row come back."""

    weights: dict[str, Weight]
    spec: ModelSpec
    kv_format: KvFormat = KvFormat.FLOAT32
    ops: OpSet = field(default_factory=OpSet)
    pages: int = 40
    slots: int = 4
    exact: bool = False
    group: Group = ALONE

    def __post_init__(self) -> None:
        self.model = Flash(self.weights, self.spec, self.ops, group=self.group)
        self.reset()

    def reset(self) -> None:
        """Start with empty state."""
        self.state = KvState.allocate(self.spec, self.kv_format, self.pages, self.slots)
        self.owners = Owners.allocate(self.state, self.pages, self.slots)
        self.ledger = self.owners.ledger()
        self.builder = BatchBuilder(self.spec, self.owners.pages, self.owners.rings, self.exact)
        self.frontiers: dict[int, int] = {}

    @torch.no_grad()
    def forward(self, *parts: Part) -> list[Tensor]:
        """Run parts in one forward; return the logits [rows, vocab] of each."""
        spans = [self._span(part) for part in parts]
        with self.ledger.open(spans) as transaction:
            ids = [token for part in parts for token in part.ids]
            prompts = [s.start + (not part.generated) for s, part in zip(spans, parts, strict=True)]
            batch = self.builder.build(spans, ids, range(len(ids)), prompts)
            logits = self.model.forward(batch, self.state)
            kept = [
                span.rows if part.kept is None else part.kept
                for span, part in zip(spans, parts, strict=True)
            ]
            transaction.commit(kept)
        for part, rows in zip(parts, kept, strict=True):
            self.frontiers[part.sequence] += rows
        led = self.group.rank == LEADER
        return list(logits.split([span.rows if led else 0 for span in spans]))

    def _span(self, part: Part) -> Span:
        if part.sequence not in self.frontiers:
            self.owners.tokens.admit(SequenceId(part.sequence), part.ids)
            self.frontiers[part.sequence] = 0
        start = self.frontiers[part.sequence]
        certain = len(part.ids) - part.proposals
        return Span(SequenceId(part.sequence), start, certain, part.proposals, True)

    def chunked(self, ids: Sequence[int], sizes: Sequence[int], sequence: int = 0) -> Tensor:
        """Run ids from empty state in chunks of the given sizes (the last repeats)."""
        self.reset()
        logits, at, turn = [], 0, 0
        while at < len(ids):
            size = sizes[min(turn, len(sizes) - 1)]
            logits += self.forward(Part(sequence, ids[at : at + size]))
            at, turn = at + size, turn + 1
        return torch.cat(logits)


def random_ids(spec: ModelSpec, count: int, seed: int) -> list[int]:
    """Return token ids drawn evenly."""
    draw = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, spec.vocab, (count,), generator=draw).tolist()
    return ids
