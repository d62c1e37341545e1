"""What a plan counts is what the owners of state allocate."""

import pytest

from deskside.formats.rows import Fp8Rows, Mxfp4Rows
from deskside.layout import kv
from deskside.layout.kv import KvFormat
from deskside.state.kv import KvState
from tests.flash import flash
from tests.miniature import miniature_spec


@pytest.mark.parametrize("kv_format", list(KvFormat))
@pytest.mark.parametrize("ratios", [(0, 4, 128, 4), (0, 0), (128,), (4, 4)])
def test_state_takes_what_was_planned(kv_format: KvFormat, ratios: tuple[int, ...]) -> None:
    spec = miniature_spec(ratios=ratios)
    state = KvState.allocate(spec, kv_format, 5, 3)
    assert state.nbytes == kv.state_bytes(spec, kv_format, 5, 3)


def test_stored_rows_are_as_wide_as_planned() -> None:
    spec = flash()
    assert Fp8Rows(spec.nope_dim, spec.rope_dim).width == kv.row_bytes(spec, KvFormat.FP8)
    assert Mxfp4Rows(spec.index_dim).width == kv.index_row_bytes(spec, KvFormat.FP8)
