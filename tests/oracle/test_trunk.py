"""The trunk against an independent implementation: every position's logits within 1e-4."""

import pytest
import torch
from torch import Tensor

from deskside.ops.opset import OpSet
from deskside.spec import ModelSpec
from tests.oracle.peer import TINY, native_weights, random_peer
from tests.rig import Part, Rig, compiled_in_floats, random_ids

LENGTH = 600
PLAIN = OpSet()
NATIVE = compiled_in_floats()
TOLERANCE = 1e-4


class Judged:
    """A judge, our rig over the same weights, and the judge's logits of one text."""

    def __init__(self, ops: OpSet, **changes: object) -> None:
        config = {**TINY, **changes}
        self.peer = random_peer(config, seed=7)
        self.spec = ModelSpec.from_config(config)
        self.rig = Rig(native_weights(self.peer), self.spec, ops=ops)
        self.compiled = ops is NATIVE
        self.ids = random_ids(self.spec, LENGTH, seed=11)
        self.logits = self.judge(self.ids)

    @torch.no_grad()
    def judge(self, ids: list[int]) -> Tensor:
        """Return the judge's logits [rows, vocab] of one whole text."""
        logits: Tensor = self.peer(torch.tensor([ids]), use_cache=False).logits[0]
        return logits

    def check(self, ours: Tensor, first: int = 0) -> None:
        """Compare rows that start at position `first` of the text."""
        difference = (ours - self.logits[first : first + ours.shape[0]]).abs().max()
        assert difference <= TOLERANCE, f"logits differ by {difference:.2e}"


@pytest.fixture(scope="module", params=[PLAIN, NATIVE], ids=["plain", "native"])
def judged(request: pytest.FixtureRequest) -> Judged:
    judged = Judged(request.param)
    assert judged.logits.std() > 0.1, "a text whose logits say nothing judges nothing"
    return judged


def test_whole_prefill(judged: Judged) -> None:
    judged.check(judged.rig.chunked(judged.ids, [LENGTH]))


@pytest.mark.parametrize("size", [*range(2, 18), 127, 128, 129])
def test_chunks(judged: Judged, size: int) -> None:
    length = LENGTH if judged.compiled else min(LENGTH, 30 * size)
    judged.check(judged.rig.chunked(judged.ids[:length], [size]))


def test_one_by_one(judged: Judged) -> None:
    length = LENGTH if judged.compiled else LENGTH // 4
    judged.check(judged.rig.chunked(judged.ids[:length], [1]))


def test_selection_is_real(judged: Judged) -> None:
    entries = LENGTH // 4
    assert judged.spec.index_topk < entries / 4, "the indexer must have something to leave out"


@pytest.mark.parametrize("kept", range(7))
@pytest.mark.parametrize("prefix", [5, 126, 250])
def test_a_block_keeps_a_prefix_and_goes_on(judged: Judged, prefix: int, kept: int) -> None:
    rig, ids = judged.rig, judged.ids
    rig.reset()
    rig.chunked(ids[:prefix], [prefix])
    wrong = [(token + 1) % judged.spec.vocab for token in ids[prefix + kept : prefix + 6]]
    block = [*ids[prefix : prefix + kept], *wrong]
    (logits,) = rig.forward(Part(0, block, proposals=5, kept=kept))
    if kept:
        judged.check(logits[:kept], prefix)
    rest = ids[prefix + kept : prefix + kept + 140]
    (logits,) = rig.forward(Part(0, rest))
    judged.check(logits, prefix + kept)


@pytest.mark.parametrize("ratios", [[0, 0], [4, 4], [128, 4], [128, 0, 128]])
def test_other_layer_kinds(ratios: list[int]) -> None:
    layers = {"compress_ratios": ratios, "num_hidden_layers": len(ratios), "num_hash_layers": 1}
    judged = Judged(NATIVE, **layers)
    judged.check(judged.rig.chunked(judged.ids, [100, 31]))


def test_every_entry_kept() -> None:
    judged = Judged(NATIVE, index_topk=512)
    judged.check(judged.rig.chunked(judged.ids, [211]))
