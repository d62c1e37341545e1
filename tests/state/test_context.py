"""The draft context takes what the layout counts."""

import pytest

from deskside.layout import kv
from deskside.layout.kv import KvFormat
from deskside.state.context import DraftContext
from tests.miniature import miniature_spec


@pytest.mark.parametrize("kv_format", list(KvFormat))
def test_context_takes_its_rings_and_their_staging(kv_format: KvFormat) -> None:
    spec = miniature_spec(drafter=True)
    context = DraftContext.allocate(spec, kv_format, 3)
    staging = spec.drafter.stages * kv.staged_rows(spec.window) * kv.row_bytes(spec, kv_format)
    assert context.nbytes == 3 * (kv.context_bytes(spec, kv_format) + staging)
    assert len(context.stages) == spec.drafter.stages


def test_a_model_without_drafter_has_none() -> None:
    with pytest.raises(AssertionError):
        DraftContext.allocate(miniature_spec(), KvFormat.FLOAT32, 3)
