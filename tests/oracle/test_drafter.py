"""The drafter against its formulas: features, drafts, logits and confidences over several steps."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deskside.checkpoint.index import Checkpoint
from deskside.core import SamplingParams, SequenceId
from deskside.engine.inputs import BatchBuilder
from deskside.engine.owners import Owners
from deskside.layout.kv import KvFormat
from deskside.model.draft_inputs import Anchor
from deskside.model.drafter import Drafter, Drafts
from deskside.model.weights import load
from deskside.ops.opset import OpSet
from deskside.speculate.policy import History, Policy
from deskside.speculate.proposal import Proposer, draft_uniforms
from deskside.state.context import DraftContext
from tests.miniature import read_floats, write_miniature
from tests.oracle.drafter import StraightDraft, StraightDrafter
from tests.oracle.peer import peer_of
from tests.rig import Part, Rig, compiled_in_floats, random_ids

SHAPE = {
    "hidden": 64,
    "ratios": (0, 4, 128, 0),
    "heads": 4,
    "head_dim": 32,
    "rope_dim": 8,
    "q_lora": 32,
    "o_lora": 16,
    "index_dim": 16,
    "intermediate": 32,
    "vocab": 256,
}
LENGTH = 200
TOLERANCE = 5e-4
"""The experts of a draft take 16-bit activations; the judge computes in float32."""
GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=0.8, top_p=0.95, frequency_penalty=0.3)


class DraftRig(Rig):
    """A rig whose forwards also keep the draft context."""

    drafter: Drafter

    def reset(self) -> None:
        super().reset()
        self.drafter = Drafter(self.weights, self.spec, self.ops)
        self.context = DraftContext.allocate(self.spec, self.kv_format, self.slots)
        self.owners = Owners.allocate(self.state, self.pages, self.slots, [self.context.group])
        self.ledger = self.owners.ledger()
        self.builder = BatchBuilder(self.spec, self.owners.pages, self.owners.rings)
        target = self.target = getattr(self, "target", self.model)
        self.model = Watched(target, self.drafter, self.context)

    @torch.no_grad()
    def draft(self, *asked: tuple[int, int, Proposer]) -> Drafts:
        """Draft for sequences: number, anchor token, how it draws."""
        anchors = [
            Anchor(token, self.frontiers[n], self.owners.rings.slot(SequenceId(n)))
            for n, token, _ in asked
        ]
        return self.drafter.draft(anchors, [proposer for _, _, proposer in asked], self.context)


class Watched:
    """A target whose forward leaves context rows too."""

    def __init__(self, target, drafter: Drafter, context: DraftContext) -> None:
        self.target, self.drafter, self.context = target, drafter, context

    def forward(self, batch, state) -> Tensor:
        features = self.drafter.features(batch)
        logits = self.target.forward(batch, state, features)
        self.features = features.joined()
        self.context.stage(self.drafter.context(self.features, batch))
        return logits


class World:
    """A random checkpoint, a text, and what the judge's layers say about it."""

    def __init__(self, folder: Path) -> None:
        self.spec = write_miniature(folder, drafter=True, seed=3, **SHAPE)
        self.config = json.loads((folder / "config.json").read_text())
        self.floats = read_floats(folder)
        weights = load(Checkpoint.open(folder))
        self.ids = random_ids(self.spec, LENGTH, seed=5)
        self.judge = StraightDrafter(self.config, self.floats)
        self.features = self._features()
        self.rigs = {
            name: DraftRig(weights, self.spec, ops=ops)
            for name, ops in (
                ("plain", OpSet()),
                ("native", compiled_in_floats()),
            )
        }

    @torch.no_grad()
    def _features(self) -> Tensor:
        peer = peer_of(self.config, self.floats)
        seen: dict[int, Tensor] = {}
        for layer in self.spec.drafter.target_layers:
            peer.model.layers[layer].register_forward_hook(
                lambda _module, _inputs, output, layer=layer: seen.update({layer: output})
            )
        peer(torch.tensor([self.ids]), use_cache=False)
        streams = [seen[layer] for layer in self.spec.drafter.target_layers]
        streams = [s[0] if isinstance(s, tuple) else s for s in streams]
        return torch.cat([s[0].mean(1) for s in streams], dim=1)

    def expected(self, position: int, proposer: Proposer) -> StraightDraft:
        before: list[int] = []

        def choose(place: int, logits: Tensor) -> int:
            token, _ = proposer.propose(logits, torch.tensor(before, dtype=torch.int64))
            before.append(int(token))
            return before[-1]

        return self.judge.draft(self.features[:position], self.ids[position], choose)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("draft"))


@pytest.fixture(params=["plain", "native"])
def rig(request: pytest.FixtureRequest, world: World) -> DraftRig:
    rig = world.rigs[request.param]
    rig.reset()
    return rig


def proposer(params: SamplingParams, world: World, position: int) -> Proposer:
    uniforms = draft_uniforms(17, 0, position, world.spec.drafter.block)
    history = History.of(world.ids[:4], world.ids[4 : position + 1], world.spec.vocab)
    return Proposer(Policy(params), uniforms, history)


def check(drafts: Drafts, index: int, expected: StraightDraft) -> None:
    tokens, confidences = drafts.read()[index]
    assert list(tokens) == expected.tokens
    assert (drafts.logits[index] - expected.logits).abs().max() <= TOLERANCE
    assert confidences == pytest.approx(expected.confidences, abs=TOLERANCE)
    assert expected.logits.std() > 0.1, "logits that say nothing judge nothing"
    assert max(confidences) - min(confidences) > 0.01


def test_features_are_the_means_of_the_judges_layers(world: World, rig: DraftRig) -> None:
    rig.forward(Part(0, world.ids[:90]))
    assert (rig.model.features - world.features[:90]).abs().max() <= TOLERANCE


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_drafts_over_several_steps(world: World, rig: DraftRig, params: SamplingParams) -> None:
    """Prompt in chunks, then blocks that keep 1 + a rows; positions below 128 and above 150."""
    rig.forward(Part(0, world.ids[:60]))
    rig.forward(Part(0, world.ids[60:101]))
    at = 101
    seen = []
    for accepted in (0, 3, 5, 1):
        one = proposer(params, world, at)
        check(rig.draft((0, world.ids[at], one)), 0, world.expected(at, one))
        seen.append(at)
        right = world.ids[at : at + 1 + accepted]
        wrong = [(token + 1) % world.spec.vocab for token in world.ids[at + 1 + accepted : at + 6]]
        rig.forward(Part(0, right + wrong, proposals=5, kept=1 + accepted))
        at += 1 + accepted
    rig.forward(Part(0, world.ids[at:153]))
    one = proposer(params, world, 153)
    check(rig.draft((0, world.ids[153], one)), 0, world.expected(153, one))
    assert min(seen) < 128


@pytest.mark.parametrize("prompt", [1, 3])
def test_the_first_draft_after_a_short_prompt(world: World, rig: DraftRig, prompt: int) -> None:
    rig.forward(Part(0, world.ids[:prompt]))
    one = proposer(GREEDY, world, prompt)
    check(rig.draft((0, world.ids[prompt], one)), 0, world.expected(prompt, one))


def test_a_draft_does_not_depend_on_its_company(world: World, rig: DraftRig) -> None:
    """Bit for bit: alone, beside others, after one chunk or many, with other slots in use."""
    starts = {0: 150, 1: 40, 2: 131}
    for number, start in starts.items():
        rig.forward(Part(number, world.ids[:start]))
    asked = [(n, world.ids[start], proposer(WARM, world, start)) for n, start in starts.items()]
    together = rig.draft(*asked)
    for index, one in enumerate(asked):
        alone = rig.draft(one)
        assert torch.equal(alone.tokens[0], together.tokens[index])
        assert torch.equal(alone.logits[0], together.logits[index])
        assert torch.equal(alone.confidences[0], together.confidences[index])
        assert torch.equal(alone.laws[0], together.laws[index])
    for number, start in starts.items():
        rig.reset()
        rig.forward(Part(9, world.ids[:7]))
        at = 0
        for size in (1, 6, 30, 128, 128):
            if at < start:
                rig.forward(Part(number, world.ids[at : min(at + size, start)]))
                at = min(at + size, start)
        again = rig.draft(asked[[*starts].index(number)])
        assert torch.equal(again.logits[0], together.logits[[*starts].index(number)])


def test_rows_stored_in_eight_bits_are_as_independent(tmp_path: Path) -> None:
    spec = write_miniature(tmp_path, drafter=True, ratios=(0, 4, 0))
    weights = load(Checkpoint.open(tmp_path))
    ids = random_ids(spec, 150, seed=1)
    drafts = []
    for kv_format in KvFormat:
        rig = DraftRig(weights, spec, kv_format, compiled_in_floats())
        rig.forward(Part(1, ids[:50]), Part(0, ids[:140]))
        one = Proposer(Policy(GREEDY), draft_uniforms(1, 0, 140, 5))
        together = rig.draft((0, ids[140], one), (1, ids[50], one))
        rig.reset()
        rig.forward(Part(0, ids[:139]))
        rig.forward(Part(0, ids[139:145], proposals=5, kept=1))
        alone = rig.draft((0, ids[140], one))
        assert torch.equal(alone.logits[0], together.logits[0])
        drafts.append(alone.logits)
    assert 0 < (drafts[0] - drafts[1]).abs().max() < drafts[1].std(), "rounded, not destroyed"


def test_laws_are_those_of_the_policy(world: World, rig: DraftRig) -> None:
    rig.forward(Part(0, world.ids[:50]))
    one = proposer(WARM, world, 50)
    cold = proposer(GREEDY, world, 50)
    rig.forward(Part(1, world.ids[:50]))
    drafts = rig.draft((0, world.ids[50], one), (1, world.ids[50], cold))
    laws = one.policy.laws(drafts.logits[0], drafts.tokens[0], one.history)
    assert torch.equal(drafts.laws[0], laws)
    assert drafts.laws[1].shape == (0, world.spec.vocab)
    assert drafts.tokens[1].tolist() == drafts.logits[1].argmax(1).tolist()


def test_temperatures_calm_the_confidences(world: World, rig: DraftRig) -> None:
    rig.forward(Part(0, world.ids[:50]))
    one = proposer(GREEDY, world, 50)
    (raw,) = rig.draft((0, world.ids[50], one)).confidences
    rig.drafter = Drafter(rig.weights, rig.spec, rig.ops, temperatures=[1.0, 2.0, 4.0, 1.0, 0.5])
    (calm,) = rig.draft((0, world.ids[50], one)).confidences
    scale = torch.tensor([1.0, 2.0, 4.0, 1.0, 0.5])
    assert torch.allclose(calm.logit() * scale, raw.logit(), atol=1e-5)
