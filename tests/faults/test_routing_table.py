"""A table of token ids to experts that names experts which are not there."""

import pytest
import torch

from deskside.errors import CheckpointError
from deskside.spec import ModelSpec
from tests.oracle.peer import TINY, native_weights, random_peer
from tests.rig import Rig

NAME = "layers.0.ffn.gate.tid2eid"


@pytest.mark.parametrize("wrong", [-1, 8, 2**40])
def test_a_damaged_table_is_refused_before_a_step(wrong: int) -> None:
    config = {**TINY, "n_routed_experts": 8}
    weights = native_weights(random_peer(config, seed=3))
    table = weights[NAME]
    assert isinstance(table, torch.Tensor)
    table = table.clone()
    table[3, 1] = wrong
    with pytest.raises(CheckpointError, match=f"{NAME}: names expert {wrong} of 8"):
        Rig({**weights, NAME: table}, ModelSpec.from_config(config))
