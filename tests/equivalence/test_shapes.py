"""A forward reads no device value: it runs on tensors that have shapes and nothing else."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)

from deskside.batch import Batch, Emissions, Kinds
from deskside.core import SequenceId, Span
from deskside.formats.packed import Packed
from deskside.layout.kv import KvFormat
from deskside.model.flash import Flash
from deskside.ops.linear import Weight
from deskside.ops.opset import OpSet
from deskside.spec import ModelSpec
from deskside.state.kv import KvState
from tests.oracle.peer import TINY, native_weights, random_peer
from tests.rig import Rig, random_ids

CHANGES = {"head_dim": 128, "qk_rope_head_dim": 64, "index_head_dim": 64, "hidden_size": 128}


@pytest.fixture(scope="module", params=list(KvFormat))
def rig(request: pytest.FixtureRequest) -> Rig:
    config = {**TINY, **CHANGES}
    weights = native_weights(random_peer(config, seed=3))
    return Rig(weights, ModelSpec.from_config(config), request.param)


def faked(mode: FakeTensorMode, weight: Weight) -> Weight:
    if isinstance(weight, Packed):
        return Packed(
            mode.from_tensor(weight.codes), mode.from_tensor(weight.scales), weight.format
        )
    return mode.from_tensor(weight)


def faked_batch(mode: FakeTensorMode, batch: Batch) -> Batch:
    def fake(value: Tensor) -> Tensor:
        return mode.from_tensor(value)

    return Batch(
        ids=fake(batch.ids),
        positions=fake(batch.positions),
        span=fake(batch.span),
        kinds=Kinds(fake(batch.kinds.prompt), fake(batch.kinds.generated)),
        slots=fake(batch.slots),
        window_index=fake(batch.window_index),
        page_table=fake(batch.page_table),
        emissions={
            ratio: Emissions(
                fake(new.source), fake(new.absent), fake(new.target), fake(new.positions)
            )
            for ratio, new in batch.emissions.items()
        },
        visible={ratio: fake(seen) for ratio, seen in batch.visible.items()},
        most_visible=batch.most_visible,
        stage={length: fake(rows) for length, rows in batch.stage.items()},
        logit_rows=fake(batch.logit_rows),
    )


@pytest.mark.parametrize("generated", [False, True])
@pytest.mark.parametrize("history", [0, 126, 300])
@pytest.mark.parametrize("rows", [1, 2, 6, 16])
def test_forward_on_shapes_alone(rig: Rig, history: int, rows: int, generated: bool) -> None:
    rig.reset()
    if history:
        rig.chunked(random_ids(rig.spec, history, seed=1), [history])
    else:
        rig.owners.tokens.admit(SequenceId(0), ())
    spans = [
        Span(SequenceId(0), history, 1, min(rows - 1, 5))
        if rows <= 6
        else Span(SequenceId(0), history, rows)
    ]
    with rig.ledger.open(spans):
        batch = rig.builder.build(
            spans, random_ids(rig.spec, rows, seed=2), None, [0 if generated else 1000]
        )
    mode = FakeTensorMode()
    with mode, torch.no_grad():
        weights = {name: faked(mode, weight) for name, weight in rig.weights.items()}
        model = Flash(weights, rig.spec, OpSet())
        state = KvState.allocate(rig.spec, rig.kv_format, rig.pages, rig.slots)
        logits = model.forward(faked_batch(mode, batch), state)
    assert isinstance(logits, FakeTensor)
    assert logits.shape == (batch.logit_rows.shape[0], rig.spec.vocab)


def test_a_device_value_read_by_the_host_would_be_seen(rig: Rig) -> None:
    def reading(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return x * float(x.sum())

    rig.reset()
    rig.owners.tokens.admit(SequenceId(0), ())
    spans = [Span(SequenceId(0), 0, 2)]
    with rig.ledger.open(spans):
        batch = rig.builder.build(spans, [1, 2])
    mode = FakeTensorMode()
    with mode, torch.no_grad():
        weights = {name: faked(mode, weight) for name, weight in rig.weights.items()}
        model = Flash(weights, rig.spec, replace(OpSet(), rms_norm=reading))
        state = KvState.allocate(rig.spec, rig.kv_format, rig.pages, rig.slots)
        fake = faked_batch(mode, batch)
        with pytest.raises(DataDependentOutputException):
            model.forward(fake, state)
