"""The name table against the published totals, and its shapes against the description."""

import subprocess
import sys
from collections import Counter

import pytest

from deskside.errors import InputError
from deskside.layout.names import Component, TensorSpec, tensors, units
from deskside.layout.published import published_config
from deskside.spec import ModelSpec
from tests.flash import flash, flash_config

C = Component

# Bytes of one rank under tensor parallelism 1, 2 and 4.
TABLE = {
    C.ROUTED_EXPERTS: (147_169_738_752, 73_584_869_376, 36_792_434_688),
    C.SHARED_EXPERTS: (1_082_196_480, 541_098_240, 270_549_120),
    C.ATTENTION_SPLIT: (4_328_796_928, 2_164_398_464, 1_082_199_232),
    C.ATTENTION_WHOLE: (270_681_216,) * 3,
    C.COMPRESSORS: (613_894_400,) * 3,
    C.INDEXER: (187_181_568,) * 3,
    C.GATES: (108_834_816,) * 3,
    C.HYPER: (135_537_756,) * 3,
    C.NORMS: (712_704,) * 3,
    C.EMBED: (1_059_061_760, 529_530_880, 264_765_440),
    C.HEAD: (1_059_061_760, 529_530_880, 264_765_440),
    C.MTP_ROUTED_EXPERTS: (10_267_656_192, 5_133_828_096, 2_566_914_048),
    C.MTP_ATTENTION_SPLIT: (302_009_088, 151_004_544, 75_502_272),
    C.MTP_SHARED_EXPERTS: (75_502_080, 37_751_040, 18_875_520),
    C.MTP_MARKOV: (132_382_720, 66_191_360, 33_095_680),
    C.MTP_MAIN_PROJ: (50_334_720,) * 3,
    C.MTP_REST: (34_953_500,) * 3,
}
TRUNK = (156_015_698_140, 78_666_270_300, 39_991_556_380)
MTP = (10_862_838_300, 5_474_063_260, 2_779_675_740)
ALL = (166_878_536_440, 84_140_333_560, 42_771_232_120)
OFFICIAL = (166_878_536_440, 84_625_592_056, 43_499_119_864)
"""The official inference's: shared experts whole on every rank, index heads cut."""


@pytest.fixture(scope="module")
def real() -> dict[str, TensorSpec]:
    return {tensor.name: tensor for tensor in tensors(flash())}


def test_counts_and_payload_of_the_real_model(real: dict[str, TensorSpec]) -> None:
    assert len(real) == len(list(tensors(flash()))) == 72_317
    assert sum(name.startswith("mtp.") for name in real) == 4_705
    assert sum(tensor.nbytes for tensor in real.values()) == 166_878_536_440


@pytest.mark.parametrize(("column", "ranks"), [(0, 1), (1, 2), (2, 4)])
def test_components_of_one_rank(real: dict[str, TensorSpec], column: int, ranks: int) -> None:
    found: Counter[Component] = Counter()
    for tensor in real.values():
        found[tensor.component] += tensor.rank_bytes(ranks)
    assert found == {component: row[column] for component, row in TABLE.items()}
    assert sum(n for c, n in found.items() if not c.drafter) == TRUNK[column]
    assert sum(n for c, n in found.items() if c.drafter) == MTP[column]
    whole, part = {c: row[0] for c, row in TABLE.items()}, found
    shared = (C.SHARED_EXPERTS, C.MTP_SHARED_EXPERTS)
    saved = sum(whole[c] - part[c] for c in shared) - (whole[C.INDEXER] * (ranks - 1) // ranks)
    assert OFFICIAL[column] - ALL[column] == saved
    assert found.total() == ALL[column]


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("embed.weight", "BF16", (129280, 4096)),
        ("head.weight", "BF16", (129280, 4096)),
        ("norm.weight", "BF16", (4096,)),
        ("hc_head_fn", "F32", (4, 16384)),
        ("hc_head_base", "F32", (4,)),
        ("hc_head_scale", "F32", (1,)),
        ("layers.0.hc_attn_fn", "F32", (24, 16384)),
        ("layers.0.hc_ffn_base", "F32", (24,)),
        ("layers.42.hc_ffn_scale", "F32", (3,)),
        ("layers.1.attn.attn_sink", "F32", (64,)),
        ("layers.1.attn.wq_a.weight", "F8_E4M3", (1024, 4096)),
        ("layers.1.attn.wq_a.scale", "F8_E8M0", (8, 32)),
        ("layers.1.attn.wq_b.weight", "F8_E4M3", (32768, 1024)),
        ("layers.1.attn.wq_b.scale", "F8_E8M0", (256, 8)),
        ("layers.1.attn.wkv.scale", "F8_E8M0", (4, 32)),
        ("layers.1.attn.kv_norm.weight", "BF16", (512,)),
        ("layers.1.attn.wo_a.weight", "F8_E4M3", (8192, 4096)),
        ("layers.1.attn.wo_b.scale", "F8_E8M0", (32, 64)),
        ("layers.2.attn.compressor.wkv.weight", "BF16", (1024, 4096)),
        ("layers.2.attn.compressor.ape", "F32", (4, 1024)),
        ("layers.2.attn.compressor.norm.weight", "BF16", (512,)),
        ("layers.2.attn.indexer.wq_b.weight", "F8_E4M3", (8192, 1024)),
        ("layers.2.attn.indexer.wq_b.scale", "F8_E8M0", (64, 8)),
        ("layers.2.attn.indexer.weights_proj.weight", "BF16", (64, 4096)),
        ("layers.2.attn.indexer.compressor.wgate.weight", "BF16", (256, 4096)),
        ("layers.2.attn.indexer.compressor.ape", "F32", (4, 256)),
        ("layers.2.attn.indexer.compressor.norm.weight", "BF16", (128,)),
        ("layers.3.attn.compressor.wgate.weight", "BF16", (512, 4096)),
        ("layers.3.attn.compressor.ape", "F32", (128, 512)),
        ("layers.2.ffn.gate.tid2eid", "I64", (129280, 6)),
        ("layers.3.ffn.gate.bias", "F32", (256,)),
        ("layers.3.ffn.experts.255.w1.weight", "I8", (2048, 2048)),
        ("layers.3.ffn.experts.255.w1.scale", "F8_E8M0", (2048, 128)),
        ("layers.3.ffn.experts.0.w2.weight", "I8", (4096, 1024)),
        ("layers.3.ffn.experts.0.w2.scale", "F8_E8M0", (4096, 64)),
        ("layers.3.ffn.shared_experts.w2.weight", "F8_E4M3", (4096, 2048)),
        ("layers.3.ffn.shared_experts.w3.scale", "F8_E8M0", (16, 32)),
        ("mtp.0.main_proj.weight", "F8_E4M3", (4096, 12288)),
        ("mtp.0.main_proj.scale", "F8_E8M0", (32, 96)),
        ("mtp.0.main_norm.weight", "BF16", (4096,)),
        ("mtp.1.ffn.gate.bias", "F32", (256,)),
        ("mtp.2.norm.weight", "BF16", (4096,)),
        ("mtp.2.hc_head_fn", "F32", (4, 16384)),
        ("mtp.2.markov_head.markov_w1.weight", "BF16", (129280, 256)),
        ("mtp.2.confidence_head.proj.weight", "BF16", (1, 4352)),
    ],
)
def test_spot_shapes(
    real: dict[str, TensorSpec], name: str, dtype: str, shape: tuple[int, ...]
) -> None:
    assert (real[name].dtype, real[name].shape) == (dtype, shape)


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.ffn.gate.bias",
        "layers.3.ffn.gate.tid2eid",
        "layers.1.attn.compressor.ape",
        "layers.3.attn.indexer.wq_b.weight",
        "mtp.0.ffn.gate.tid2eid",
        "mtp.0.attn.compressor.ape",
        "mtp.1.main_proj.weight",
        "mtp.1.norm.weight",
        "layers.0.attn.q_norm.scale",
    ],
)
def test_names_that_do_not_exist(real: dict[str, TensorSpec], name: str) -> None:
    assert name not in real


def test_units_follow_the_published_files(real: dict[str, TensorSpec]) -> None:
    order = list(units(flash()))
    assert len(order) == 48
    assert order[0] == "embed"
    assert order[1:44] == [f"layers.{n}" for n in range(43)]
    assert order[44:] == ["final", "mtp.0", "mtp.1", "mtp.2"]
    assert list(dict.fromkeys(t.unit for t in real.values())) == order


def test_a_model_without_drafter_has_no_mtp() -> None:
    found = list(tensors(flash(drafter=False)))
    assert len(found) == 72_317 - 4_705
    assert not any(t.component.drafter for t in found)


def test_one_stage_holds_both_ends() -> None:
    names = {t.name for t in tensors(flash(compress_ratios=flash_config()["compress_ratios"][:44]))}
    assert {"mtp.0.main_proj.weight", "mtp.0.confidence_head.proj.weight"} <= names


def test_partial_blocks_round_up() -> None:
    small = flash(hidden_size=64, moe_intermediate_size=32, q_lora_rank=160, n_routed_experts=8)
    found = {t.name: t for t in tensors(small)}
    assert found["layers.0.attn.wq_a.scale"].shape == (2, 1)
    assert found["layers.0.ffn.experts.7.w2.weight"].shape == (64, 16)
    assert found["layers.0.ffn.experts.7.w2.scale"].shape == (64, 1)


def test_cuts_through_blocks_are_refused(real: dict[str, TensorSpec]) -> None:
    with pytest.raises(InputError, match=r"experts\.0\.w2\.weight: 3 ranks.*--tp 2 or 4"):
        real["layers.3.ffn.experts.0.w2.weight"].rank_shape(3)
    assert real["layers.3.ffn.experts.0.w2.scale"].rank_shape(4) == (4096, 16)
    assert real["layers.3.attn.wq_a.weight"].rank_shape(3) == (1024, 4096)


@pytest.mark.parametrize("drafter", [True, False])
def test_a_published_config_reads_back(drafter: bool) -> None:
    spec = flash(drafter=drafter, rope_scaling=flash_config()["rope_scaling"] if drafter else None)
    assert ModelSpec.from_config(published_config(spec)) == spec
    if drafter:
        assert published_config(spec) == flash_config()


def test_layout_loads_no_torch() -> None:
    code = (
        "import sys, deskside.layout.names, deskside.layout.kv, deskside.layout.folder, "
        "deskside.layout.published; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
