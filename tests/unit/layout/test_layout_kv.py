"""KV bytes against the numbers of the real model."""

import pytest

from deskside.errors import InputError
from deskside.layout import kv
from deskside.layout.kv import KvFormat
from tests.flash import flash


def test_rows_of_the_real_model() -> None:
    spec = flash()
    assert kv.row_bytes(spec, KvFormat.FP8) == 584
    assert kv.index_row_bytes(spec, KvFormat.FP8) == 68
    assert kv.row_bytes(spec, KvFormat.FLOAT32) == 2048
    assert kv.index_row_bytes(spec, KvFormat.FLOAT32) == 512


def test_pages_of_the_real_model() -> None:
    spec = flash()
    assert [kv.entries_per_page(r) for r in (0, 4, 128)] == [0, 32, 1]
    assert kv.layer_page_bytes(spec, 0, KvFormat.FP8) == 0
    assert kv.layer_page_bytes(spec, 4, KvFormat.FP8) == 18_688 + 2_176
    assert kv.layer_page_bytes(spec, 128, KvFormat.FP8) == 584
    assert kv.page_bytes(spec, KvFormat.FP8) / kv.PAGE == 3514.25
    assert kv.page_bytes(spec, KvFormat.FLOAT32) == 2 * 880_640  # the table counts BF16
    assert [kv.pages_for(n) for n in (0, 1, 128, 129)] == [0, 1, 1, 2]


def test_slots_of_the_real_model() -> None:
    spec = flash()
    assert kv.ring_bytes(spec, KvFormat.FLOAT32) == 2 * 5_636_096
    assert kv.context_bytes(spec, KvFormat.FLOAT32) == 2 * 393_216
    assert kv.carry_bytes(spec) == 12_206_080
    assert kv.carry_bytes(spec) == 21 * (65_536 + 16_384) + 20 * 524_288
    # 43 windows of 136 rows; 21 x 16 rows of 2 x (1024 + 256) and 20 x 136 rows of 2 x 512 floats
    raw = 21 * 16 * 2 * 1280 * 4 + 20 * 136 * 2 * 512 * 4
    assert kv.staging_bytes(spec, KvFormat.FP8) == 43 * 136 * 584 + raw
    assert kv.state_bytes(spec, KvFormat.FP8, 10, 3) == (
        11 * kv.page_bytes(spec, KvFormat.FP8) + 3 * kv.slot_bytes(spec, KvFormat.FP8)
    )


def test_a_model_without_drafter_has_no_context() -> None:
    assert kv.context_bytes(flash(drafter=False), KvFormat.FP8) == 0


def test_partial_blocks_have_no_fp8_rows() -> None:
    kv.check_format(flash(), KvFormat.FP8)
    narrow = flash(head_dim=96)
    kv.check_format(narrow, KvFormat.FLOAT32)
    with pytest.raises(InputError, match=r"blocks of 64.*has 32; use --kv-format float32"):
        kv.check_format(narrow, KvFormat.FP8)
    with pytest.raises(InputError, match="index_head_dim in whole blocks of 32"):
        kv.check_format(flash(index_head_dim=80), KvFormat.FP8)


def test_snapshots_of_the_real_model() -> None:
    spec = flash()
    windows, context = 43 * 128 * 584, 3 * 128 * 584
    halves = 21 * 4 * 2 * 1280 * 4  # the window before a border, of ratio 4 alone
    assert [kv.carry_crosses(ratio) for ratio in (0, 4, 128)] == [0, 4, 0]
    assert kv.snapshot_bytes(spec, KvFormat.FP8) == windows + halves
    assert kv.snapshot_bytes(spec, KvFormat.FP8, drafter=True) == windows + halves + context
    carries = kv.carry_bytes(spec)
    assert kv.border_bytes(spec, KvFormat.FP8, drafter=True) == 2 * (windows + carries + context)
