"""The drafter where the answer is known beforehand, and with context rows in eight bits."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deskside.checkpoint.index import Checkpoint
from deskside.core import SamplingParams
from deskside.layout.kv import KvFormat
from deskside.model.weights import load
from deskside.speculate.policy import Policy
from deskside.speculate.proposal import Proposer, draft_uniforms
from tests.miniature import read_floats, write_miniature
from tests.oracle.drafter import StraightDraft, StraightDrafter
from tests.oracle.test_drafter import SHAPE, DraftRig
from tests.rig import Part, compiled_in_floats, random_ids

BLOCK = 5
LAST = "mtp.2"


def greedy(position: int) -> Proposer:
    return Proposer(Policy(SamplingParams(temperature=0)), draft_uniforms(1, 0, position, BLOCK))


def rig_of(folder: Path, weights: dict[str, Tensor], **shape: object) -> DraftRig:
    spec = write_miniature(folder, drafter=True, seed=8, weights=weights, **{**SHAPE, **shape})
    return DraftRig(load(Checkpoint.open(folder)), spec, ops=compiled_in_floats())


def straight(
    judge: StraightDrafter, features: Tensor, token: int, proposer: Proposer
) -> StraightDraft:
    before: list[int] = []

    def choose(_place: int, logits: Tensor) -> int:
        token, _ = proposer.propose(logits, torch.tensor(before, dtype=torch.int64))
        before.append(int(token))
        return before[-1]

    return judge.draft(features, token, choose)


def test_a_markov_head_alone_counts_upwards(tmp_path: Path) -> None:
    """No base logits, and a head that likes the successor: the block must be the next five.

    Confidences read the token before and nothing else, so each is known as well.
    """
    vocab, hidden = SHAPE["vocab"], SHAPE["hidden"]
    rank = 32
    codes = torch.randn(vocab, rank, generator=torch.Generator().manual_seed(2)).sign()
    proj = torch.zeros(1, hidden + rank)
    proj[0, hidden] = 2.0
    weights = {
        "head.weight": torch.zeros(vocab, hidden),
        f"{LAST}.markov_head.markov_w1.weight": codes,
        f"{LAST}.markov_head.markov_w2.weight": codes.roll(1, 0),
        f"{LAST}.confidence_head.proj.weight": proj,
    }
    rig = rig_of(tmp_path, weights)
    rig.forward(Part(0, random_ids(rig.spec, 40, 1)))
    anchors = (7, 100, vocab - 3)
    for anchor in anchors:
        ((tokens, confidences),) = rig.draft((0, anchor, greedy(40))).read()
        assert list(tokens) == [(anchor + 1 + k) % vocab for k in range(BLOCK)]
        before = torch.tensor([anchor, *tokens[:-1]])
        assert confidences == pytest.approx(torch.sigmoid(2.0 * codes[before, 0]).tolist())


def test_rows_without_sub_layers_are_their_embeddings(tmp_path: Path) -> None:
    """Sub-layers that write nothing leave the input rows: the anchor's, then four of noise.

    So the first row's logits follow the anchor, the others are equal and follow nothing.
    """
    vocab, hidden = SHAPE["vocab"], SHAPE["hidden"]
    weights = {f"{LAST}.markov_head.markov_w2.weight": torch.zeros(vocab, 32)}
    for stage in range(3):
        weights[f"mtp.{stage}.attn.wo_b.weight"] = torch.zeros(hidden, SHAPE["o_lora"] * 2)
        names = [f"experts.{number}" for number in range(8)] + ["shared_experts"]
        for name in names:
            weights[f"mtp.{stage}.ffn.{name}.w2.weight"] = torch.zeros(
                hidden, SHAPE["intermediate"]
            )
    rig = rig_of(tmp_path, weights)
    rig.forward(Part(0, random_ids(rig.spec, 40, 1)))
    one, other = (rig.draft((0, anchor, greedy(40))).logits[0] for anchor in (7, 8))
    assert not torch.equal(one[0], other[0])
    assert torch.equal(one[1:], other[1:])
    assert torch.equal(one[1:], one[1:2].expand(BLOCK - 1, -1))


def test_every_row_of_a_block_sees_all_of_it(tmp_path: Path) -> None:
    """Another anchor changes every row; another noise token the anchor's row too, which is first.

    The text holds no noise, so the target says the same in both.
    """
    generator = torch.Generator().manual_seed(4)
    embed = torch.randn(SHAPE["vocab"], SHAPE["hidden"], generator=generator)
    noisy = embed.clone()
    noisy[-1] += 1.0
    found = []
    for name, table in (("one", embed), ("other", noisy)):
        (tmp_path / name).mkdir()
        rig = rig_of(tmp_path / name, {"embed.weight": table})
        rig.forward(Part(0, [token % 250 for token in random_ids(rig.spec, 40, 1)]))
        found += [rig.draft((0, anchor, greedy(40))).logits[0] for anchor in (7, 8)]
    own, anchor, noise, _ = found
    assert all(not torch.equal(a, b) for a, b in zip(own, anchor, strict=True))
    assert all(not torch.equal(a, b) for a, b in zip(own, noise, strict=True))


def test_context_rows_in_eight_bits_follow_the_formulas(tmp_path: Path) -> None:
    """The judge rounds keys as the cache does, from the features that the target really had.

    A key that lies between two codes may fall to the other side, since the judge adds in another
    order; so a few logits may differ by a little, and all by much less than the rounding itself.
    """
    shape = {**SHAPE, "head_dim": 72, "index_dim": 32}
    spec = write_miniature(tmp_path, drafter=True, seed=3, **shape)
    rig = DraftRig(load(Checkpoint.open(tmp_path)), spec, KvFormat.FP8, compiled_in_floats())
    ids = random_ids(spec, 160, 5)
    features = []
    for first, last in ((0, 70), (70, 130), (130, 150)):
        rig.forward(Part(0, ids[first:last]))
        features.append(rig.model.features)
    config = json.loads((tmp_path / "config.json").read_text())
    floats, seen = read_floats(tmp_path), torch.cat(features)
    found = rig.draft((0, ids[150], greedy(150)))
    rounded, whole = (
        straight(StraightDrafter(config, floats, bits), seen, ids[150], greedy(150))
        for bits in (True, False)
    )
    tokens, confidences = found.read()[0]
    assert list(tokens) == rounded.tokens
    assert confidences == pytest.approx(rounded.confidences, abs=2e-3)
    error = (found.logits[0] - rounded.logits).abs()
    rounding = (whole.logits - rounded.logits).abs()
    assert error.max() <= 0.02
    assert error.mean() < rounding.mean() / 5
