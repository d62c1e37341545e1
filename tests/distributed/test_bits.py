"""Ranks that share a model compute the bits of one rank alone."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import Cut
from deskside.core import SamplingParams
from deskside.distributed.group import ALONE, LEADER, Group
from deskside.kernels import native
from deskside.layout.kv import KvFormat
from deskside.model.draft_inputs import Anchor
from deskside.model.drafter import Drafter
from deskside.model.weights import load
from deskside.ops.opset import OpSet
from deskside.spec import ModelSpec
from deskside.speculate.policy import Policy
from deskside.speculate.proposal import Proposer, draft_uniforms
from deskside.state.context import DraftContext
from tests.distributed.threads import as_threads
from tests.miniature import write_miniature
from tests.rig import Part, Rig, random_ids

SHAPE = {
    "hidden": 256,
    "heads": 8,
    "o_groups": 8,
    "o_lora": 128,
    "intermediate": 1024,
    "vocab": 256,
}
OPS = {"plain": OpSet(), "native": OpSet().replaced(native.bodies())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    write_miniature(folder, seed=3, drafter=True, **SHAPE)
    return folder


@dataclass(frozen=True)
class Outcome:
    """What one rank saw."""

    logits: list[Tensor]
    drafts: tuple[Tensor, Tensor, Tensor]


def outcome(folder: Path, ops: OpSet, group: Group) -> Outcome:
    """Run a prompt in chunks beside another sequence, a verification, a token, and draft."""
    checkpoint = Checkpoint.open(folder)
    weights = load(checkpoint, cut=Cut(group.rank, group.ranks))
    spec = checkpoint.spec
    rig = Rig(weights, spec, ops=ops, kv_format=KvFormat.FP8, exact=True, group=group)
    ids = random_ids(spec, 200, 5)
    logits = [
        *rig.forward(Part(0, ids[:150])),
        *rig.forward(Part(0, ids[150:153]), Part(1, ids[:17])),
        *rig.forward(Part(0, ids[153:157], proposals=3, kept=2, generated=True)),
        *rig.forward(Part(0, ids[155:156], generated=True), Part(1, ids[17:18], generated=True)),
    ]
    return Outcome(logits, drafted(weights, spec, ops, group))


@torch.no_grad()
def drafted(
    weights: dict[str, object], spec: ModelSpec, ops: OpSet, group: Group
) -> tuple[Tensor, Tensor, Tensor]:
    """Draft for two sequences, one greedy, over empty contexts."""
    assert spec.drafter is not None
    drafter = Drafter(weights, spec, ops, group=group)  # type: ignore[arg-type]
    context = DraftContext.allocate(spec, KvFormat.FP8, 2, None)
    context.group.storage.copy_(_noise(context.group.storage))
    proposers = [
        Proposer(
            Policy(SamplingParams(temperature=heat)), draft_uniforms(7, 0, 150, spec.drafter.block)
        )
        for heat in (0.0, 1.0)
    ]
    anchors = [Anchor(5, 150, 0), Anchor(9, 170, 1)]
    found = drafter.draft(anchors, proposers if group.rank == LEADER else (), context)
    return found.tokens, found.confidences, found.logits


def _noise(like: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, 64, like.shape, generator=draw, dtype=like.dtype)


def test_rows_of_the_table_are_found_on_the_rank_that_holds_them(folder: Path) -> None:
    found = outcome(folder, OPS["native"], ALONE)
    assert len({row.argmax().item() for part in found.logits for row in part}) > 20


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_logits_and_drafts_of_several_ranks(folder: Path, ops: str, ranks: int) -> None:
    alone = outcome(folder, OPS[ops], ALONE)
    leader, *others = as_threads(ranks, lambda group: outcome(folder, OPS[ops], group))
    for found, expected in zip(leader.logits, alone.logits, strict=True):
        assert found.equal(expected)
    for one, expected in zip(leader.drafts, alone.drafts, strict=True):
        assert one.equal(expected)
    for other in others:
        told = other.drafts[0][:, :-1]  # the choice tells the last one
        assert told.equal(alone.drafts[0][:, :-1]), "tokens are the leader's"
        assert other.drafts[1].equal(alone.drafts[1])
        assert all(part.numel() == 0 for part in other.logits), "logits go to the leader alone"
