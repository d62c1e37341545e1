"""A row's bits never depend on its neighbours: any chunking, company and thread count."""

from itertools import product

import pytest
import torch
from torch import Tensor

from deskside.kernels import native
from deskside.layout.kv import KvFormat
from deskside.ops.opset import OpSet
from deskside.spec import ModelSpec
from tests.oracle.peer import TINY, native_weights, random_peer
from tests.rig import Part, Rig, random_ids

LENGTH = 300
CHANGES = {"head_dim": 128, "qk_rope_head_dim": 64, "index_head_dim": 64, "hidden_size": 128}


CASES = [*product(KvFormat, ("plain", "native"), ("prompt",))]
CASES += [(KvFormat.FLOAT32, "plain", "generated"), (KvFormat.FP8, "native", "generated")]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def rig(request: pytest.FixtureRequest) -> Rig:
    """Return a rig whose rows are all of one kind."""
    kv_format, bodies, kind = request.param
    config = {**TINY, **CHANGES}
    weights = native_weights(random_peer(config, seed=3))
    ops = OpSet() if bodies == "plain" else OpSet().replaced(native.bodies())
    spec = ModelSpec.from_config(config)
    return Rig(weights, spec, kv_format, ops, exact=kind == "generated")


@pytest.fixture(scope="module")
def ids(rig: Rig) -> list[int]:
    return random_ids(rig.spec, LENGTH, seed=5)


@pytest.fixture(scope="module")
def whole(rig: Rig, ids: list[int]) -> Tensor:
    return rig.chunked(ids, [LENGTH])


@pytest.fixture(autouse=True)
def empty(rig: Rig, whole: Tensor) -> None:
    rig.reset()


@pytest.mark.parametrize("size", [*range(2, 18), 127, 128, 129])
def test_any_chunking(rig: Rig, ids: list[int], whole: Tensor, size: int) -> None:
    length = min(LENGTH, (30 if rig.ops.linear is native.linear else 8) * size)
    assert torch.equal(rig.chunked(ids[:length], [size]), whole[:length])


def test_one_by_one(rig: Rig, ids: list[int], whole: Tensor) -> None:
    assert torch.equal(rig.chunked(ids[:140], [1]), whole[:140])


def test_mixed_chunks(rig: Rig, ids: list[int], whole: Tensor) -> None:
    assert torch.equal(rig.chunked(ids, [3, 1, 6, 50, 1, 1, 129]), whole)


@pytest.mark.parametrize("threads", [1, 2])
def test_any_thread_count(rig: Rig, ids: list[int], whole: Tensor, threads: int) -> None:
    before = torch.get_num_threads(), native.threads()
    torch.set_num_threads(threads)
    native.set_threads(threads)
    try:
        assert torch.equal(rig.chunked(ids[:150], [130, 17]), whole[:150])
    finally:
        torch.set_num_threads(before[0])
        native.set_threads(before[1])


def test_any_company(rig: Rig, ids: list[int], whole: Tensor) -> None:
    other = random_ids(rig.spec, LENGTH, seed=6)
    at = {0: 0, 1: 0, 2: 0}
    logits: list[Tensor] = []
    for sizes in [(5, 130, 1), (1, 1, 40), (17, 2, 129), (128, 6, 3), (6, 1, 1), (64, 64, 64)]:
        order = [2, 0, 1] if sizes[0] % 2 else [0, 1, 2]
        parts = {}
        for sequence, size in enumerate(sizes):
            text = ids if sequence == 0 else other
            parts[sequence] = Part(sequence, text[at[sequence] : at[sequence] + size])
            at[sequence] += size
        outputs = rig.forward(*(parts[sequence] for sequence in order))
        logits.append(outputs[order.index(0)])
    joined = torch.cat(logits)
    assert torch.equal(joined, whole[: joined.shape[0]])


def test_rejected_rows_leave_no_trace(rig: Rig, ids: list[int], whole: Tensor) -> None:
    wrong = random_ids(rig.spec, LENGTH, seed=8)
    at, turn = 0, 0
    while at < 200:
        kept = 1 + turn % 6
        block = [*ids[at : at + kept], *wrong[at + kept : at + 6]]
        (logits,) = rig.forward(Part(0, block, proposals=5, kept=kept))
        assert torch.equal(logits[:kept], whole[at : at + kept])
        at, turn = at + kept, turn + 1


def test_company_of_the_other_kind(rig: Rig, ids: list[int], whole: Tensor) -> None:
    """Generated rows beside prompt rows: both have the bits of a forward of their kind alone."""
    if rig.exact:
        pytest.skip("all rows are of one kind here")
    rig.forward(Part(0, ids[:50]))
    alone = rig.forward(Part(0, ids[50:56], generated=True))[0]
    rig.reset()
    rig.forward(Part(0, ids[:50]), Part(1, ids[:1]))
    together = rig.forward(Part(1, ids[1:40]), Part(0, ids[50:56], generated=True))
    assert torch.equal(together[1], alone)
    assert torch.equal(together[0], whole[1:40])
    one_path = rig.ops.linear is native.linear  # compiled experts are integers for all rows
    assert torch.equal(alone, whole[50:56]) == one_path
    torch.testing.assert_close(alone, whole[50:56], rtol=0.0, atol=5e-3)


def test_the_test_can_fail(rig: Rig, ids: list[int], whole: Tensor) -> None:
    changed = [*ids[:10], (ids[10] + 1) % rig.spec.vocab, *ids[11:50]]
    assert not torch.equal(rig.chunked(changed, [50]), whole[:50])
