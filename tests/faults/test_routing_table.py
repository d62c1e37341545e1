"""A table of token ids to experts that names experts which are not there."""

from pathlib import Path

import pytest

from deskside.checkpoint.index import Checkpoint
from deskside.errors import CheckpointError
from deskside.model.weights import load
from tests.miniature import read_floats, write_miniature

NAME = "layers.0.ffn.gate.tid2eid"


@pytest.mark.parametrize("wrong", [-1, 8, 2**40])
def test_a_damaged_table_is_refused_by_the_load(tmp_path: Path, wrong: int) -> None:
    write_miniature(tmp_path / "good")
    load(Checkpoint.open(tmp_path / "good"))
    table = read_floats(tmp_path / "good")[NAME].clone()
    table[3, 1] = wrong
    write_miniature(tmp_path / "bad", weights={NAME: table})
    with pytest.raises(CheckpointError, match=f"{NAME}: names expert {wrong} of 8"):
        load(Checkpoint.open(tmp_path / "bad"))
