"""Speculation without a drafter: proposals that a test writes down."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deskside.batch import Batch
from deskside.core import Pause, SequenceId, Span
from deskside.engine.live import Live
from deskside.engine.speculation import Speculator
from deskside.engine.verify import Proposal
from deskside.llm import LLM
from deskside.model.flash import Flash
from deskside.state.kv import KvState

__all__ = ["Block", "Scripted", "scripted", "speculator"]


@dataclass(frozen=True)
class Block:
    """One block that was proposed: where it starts, how long it is, what stayed of it."""

    seed: int
    start: int
    width: int
    accepted: int


@dataclass
class Scripted:
    """Proposes what the target is known to say, wrong where the script says so.

    `width` and `wrong` are asked with the request's seed, which says which script it follows, and
    the place in the output that a block or a proposal is for.
    """

    truth: Sequence[int]
    vocab: int
    width: Callable[[int, int], int]
    """From seed and place of the first proposal to a number of proposals."""
    wrong: Callable[[int, int, int], bool]
    """From seed, place, and place in the block: whether that proposal is wrong."""
    blocks: list[Block] = field(default_factory=list)
    _seeds: dict[SequenceId, int] = field(default_factory=dict)

    @property
    def accepted(self) -> int:
        return sum(block.accepted for block in self.blocks)

    def drafting(self, spans: Sequence[Span], live: Mapping[SequenceId, Live]) -> list[Span]:
        return []

    def follow(self, drafting: Sequence[Span]) -> None:
        pass

    def propose(
        self, spans: Sequence[Span], drafting: Sequence[Span], live: Mapping[SequenceId, Live]
    ) -> list[Proposal]:
        return [self._propose(span, live[span.sequence]) for span in spans]

    def _propose(self, span: Span, live: Live) -> Proposal:
        prompt = len(live.request.prompt)
        if not span.samples or span.start < prompt or span.certain > 1:
            return Proposal.none()
        self._seeds[span.sequence] = live.seed
        first = span.start - prompt + 1
        width = min(self.width(live.seed, first), live.stop.left - 1, len(self.truth) - first)
        ids = tuple(
            (self.truth[first + k] + self.wrong(live.seed, first + k, k)) % self.vocab
            for k in range(max(width, 0))
        )
        return Proposal(ids, torch.tensor(ids, dtype=torch.int64), torch.empty(0))

    def forward(self, model: Flash, batch: Batch, state: KvState) -> Tensor:
        return model.forward(batch, state)

    def learn(self, span: Span, accepted: int) -> Pause | None:
        if span.proposals:
            seed = self._seeds[span.sequence]
            self.blocks.append(Block(seed, span.start, span.proposals, accepted))
        return None

    def release(self, sequence: SequenceId) -> None:
        pass


def speculator(llm: LLM) -> Speculator:
    """Return what proposes with the checkpoint's own drafter."""
    found = llm._runtime.engine._speculation
    assert isinstance(found, Speculator)
    return found


@contextmanager
def scripted(llm: LLM, script: Scripted):
    """Let the script stand in place of the model's own speculation."""
    engine = llm._runtime.engine
    before, engine._speculation = engine._speculation, script
    try:
        yield
    finally:
        engine._speculation = before
