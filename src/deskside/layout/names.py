"""The checkpoint's tensors: one table of names, element types and shapes for any model shape.

Owns what a 0731 folder must hold, which component of a plan each tensor counts to and along which
axis tensor-parallel ranks cut it. Knows no files and no torch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from deskside.layout.cuts import RANK_COUNTS, check_cut
from deskside.spec import CSA_RATIO, HCA_RATIO, ModelSpec

__all__ = ["ITEM_BYTES", "Component", "TensorSpec", "tensors", "units"]

ITEM_BYTES = {"BF16": 2, "F32": 4, "I64": 8, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
"""Bytes of one element by safetensors dtype; I8 holds two FP4 codes."""

FP8_BLOCK = 128
FP4_BLOCK = 32


class Component(StrEnum):
    """What a tensor counts to in a plan."""

    ROUTED_EXPERTS = "trunk routed experts"
    SHARED_EXPERTS = "trunk shared experts"
    ATTENTION_SPLIT = "attention wq_b, wo_a, wo_b, sink"
    ATTENTION_WHOLE = "attention wq_a, wkv, norms"
    COMPRESSORS = "compressors (attention + indexer)"
    INDEXER = "indexer wq_b, weights_proj"
    GATES = "gates + tid2eid"
    HYPER = "hyper-connections"
    NORMS = "norms"
    EMBED = "embed"
    HEAD = "head"
    MTP_ROUTED_EXPERTS = "mtp routed experts"
    MTP_ATTENTION_SPLIT = "mtp attention split part"
    MTP_SHARED_EXPERTS = "mtp shared experts"
    MTP_MARKOV = "mtp markov w1+w2"
    MTP_MAIN_PROJ = "mtp main_proj"
    MTP_REST = "mtp rest"

    @property
    def drafter(self) -> bool:
        """Whether only the drafter needs it."""
        return self.value.startswith("mtp ")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One stored tensor.

    `dtype` and `shape` are what the safetensors header says; `logical` is the shape of the numbers,
    [out, in] for the codes and the scales of a matrix alike. `axis` is the axis that ranks cut
    (None: every rank holds all), `block` the stored elements along it that must stay together.
    `unit` is the part of the model it belongs to: "embed", "layers.N", "final" or "mtp.S".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    logical: tuple[int, ...]
    component: Component
    axis: int | None
    block: int
    unit: str

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def rank_shape(self, ranks: int) -> tuple[int, ...]:
        """Return the stored shape of one rank's part.

        Raises:
            InputError: the cut does not fall between whole blocks; names the nearest legal counts.
        """
        if self.axis is None or ranks == 1:
            return self.shape
        kind = "rows" if self.axis == 0 else "columns"
        check_cut(self.name, kind, self.shape[self.axis], self.block, ranks, RANK_COUNTS)
        shape = list(self.shape)
        shape[self.axis] //= ranks
        return tuple(shape)

    def rank_bytes(self, ranks: int) -> int:
        """Bytes of one rank's part; raises as `rank_shape` does."""
        return math.prod(self.rank_shape(ranks)) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the table: `shape` holds names of dimensions, `kind` a dtype, "FP8" or "FP4".

    FP8 and FP4 lines name a matrix and stand for `<name>.weight` and `<name>.scale`.
    """

    name: str
    kind: str
    shape: str
    component: Component
    axis: int | None = None


_C = Component
_Rows = tuple[_Row, ...]

_EMBED: _Rows = (_Row("embed.weight", "BF16", "vocab hidden", _C.EMBED, 0),)

_ATTENTION: _Rows = (
    _Row("attn_norm.weight", "BF16", "hidden", _C.NORMS),
    _Row("attn.attn_sink", "F32", "heads", _C.ATTENTION_SPLIT, 0),
    _Row("attn.wq_a", "FP8", "q_lora hidden", _C.ATTENTION_WHOLE),
    _Row("attn.q_norm.weight", "BF16", "q_lora", _C.ATTENTION_WHOLE),
    _Row("attn.wq_b", "FP8", "heads*head_dim q_lora", _C.ATTENTION_SPLIT, 0),
    _Row("attn.wkv", "FP8", "head_dim hidden", _C.ATTENTION_WHOLE),
    _Row("attn.kv_norm.weight", "BF16", "head_dim", _C.ATTENTION_WHOLE),
    _Row("attn.wo_a", "FP8", "o_groups*o_lora group_dim", _C.ATTENTION_SPLIT, 0),
    _Row("attn.wo_b", "FP8", "hidden o_groups*o_lora", _C.ATTENTION_SPLIT, 1),
)

_COMPRESSOR: _Rows = (
    _Row("attn.compressor.wkv.weight", "BF16", "carry hidden", _C.COMPRESSORS),
    _Row("attn.compressor.wgate.weight", "BF16", "carry hidden", _C.COMPRESSORS),
    _Row("attn.compressor.ape", "F32", "ratio carry", _C.COMPRESSORS),
    _Row("attn.compressor.norm.weight", "BF16", "head_dim", _C.COMPRESSORS),
)

_INDEXER: _Rows = (
    _Row("attn.indexer.wq_b", "FP8", "index_heads*index_dim q_lora", _C.INDEXER),
    _Row("attn.indexer.weights_proj.weight", "BF16", "index_heads hidden", _C.INDEXER),
    _Row("attn.indexer.compressor.wkv.weight", "BF16", "2*index_dim hidden", _C.COMPRESSORS),
    _Row("attn.indexer.compressor.wgate.weight", "BF16", "2*index_dim hidden", _C.COMPRESSORS),
    _Row("attn.indexer.compressor.ape", "F32", "ratio 2*index_dim", _C.COMPRESSORS),
    _Row("attn.indexer.compressor.norm.weight", "BF16", "index_dim", _C.COMPRESSORS),
)

_FEED_FORWARD: _Rows = (
    _Row("ffn_norm.weight", "BF16", "hidden", _C.NORMS),
    _Row("ffn.gate.weight", "BF16", "experts hidden", _C.GATES),
)
_GATE_SCORED: _Rows = (_Row("ffn.gate.bias", "F32", "experts", _C.GATES),)
_GATE_HASHED: _Rows = (_Row("ffn.gate.tid2eid", "I64", "vocab topk", _C.GATES),)

_SHARED: _Rows = (
    _Row("ffn.shared_experts.w1", "FP8", "intermediate hidden", _C.SHARED_EXPERTS, 0),
    _Row("ffn.shared_experts.w2", "FP8", "hidden intermediate", _C.SHARED_EXPERTS, 1),
    _Row("ffn.shared_experts.w3", "FP8", "intermediate hidden", _C.SHARED_EXPERTS, 0),
)

_EXPERT: _Rows = (
    _Row("w1", "FP4", "intermediate hidden", _C.ROUTED_EXPERTS, 0),
    _Row("w2", "FP4", "hidden intermediate", _C.ROUTED_EXPERTS, 1),
    _Row("w3", "FP4", "intermediate hidden", _C.ROUTED_EXPERTS, 0),
)

_HYPER: _Rows = tuple(
    _Row(f"hc_{sublayer}_{part}", "F32", shape, _C.HYPER)
    for sublayer in ("attn", "ffn")
    for part, shape in (("fn", "mixing streams*hidden"), ("base", "mixing"), ("scale", "3"))
)

_HC_HEAD: _Rows = (
    _Row("hc_head_fn", "F32", "streams streams*hidden", _C.HYPER),
    _Row("hc_head_base", "F32", "streams", _C.HYPER),
    _Row("hc_head_scale", "F32", "1", _C.HYPER),
)

_FINAL: _Rows = (
    _Row("norm.weight", "BF16", "hidden", _C.NORMS),
    _Row("head.weight", "BF16", "vocab hidden", _C.HEAD, 0),
    *_HC_HEAD,
)

_MTP_FIRST: _Rows = (
    _Row("main_proj", "FP8", "hidden targets*hidden", _C.MTP_MAIN_PROJ),
    _Row("main_norm.weight", "BF16", "hidden", _C.MTP_REST),
)
_MTP_LAST: _Rows = (
    _Row("norm.weight", "BF16", "hidden", _C.MTP_REST),
    *_HC_HEAD,
    _Row("markov_head.markov_w1.weight", "BF16", "vocab markov", _C.MTP_MARKOV, 0),
    _Row("markov_head.markov_w2.weight", "BF16", "vocab markov", _C.MTP_MARKOV, 0),
    _Row("confidence_head.proj.weight", "BF16", "1 hidden+markov", _C.MTP_REST),
)

_IN_MTP = {
    _C.ROUTED_EXPERTS: _C.MTP_ROUTED_EXPERTS,
    _C.SHARED_EXPERTS: _C.MTP_SHARED_EXPERTS,
    _C.ATTENTION_SPLIT: _C.MTP_ATTENTION_SPLIT,
    _C.ATTENTION_WHOLE: _C.MTP_REST,
    _C.GATES: _C.MTP_REST,
    _C.HYPER: _C.MTP_REST,
    _C.NORMS: _C.MTP_REST,
}


def tensors(spec: ModelSpec) -> Iterator[TensorSpec]:
    """Yield every tensor of a checkpoint, unit by unit: 72,317 for the real model."""
    for unit in units(spec):
        yield from _unit_tensors(spec, unit)


def units(spec: ModelSpec) -> Iterator[str]:
    """Yield the parts of the model in file order: embed, layers, final, drafter stages."""
    yield "embed"
    for layer in range(spec.layers):
        yield f"layers.{layer}"
    yield "final"
    for stage in range(spec.drafter.stages if spec.drafter else 0):
        yield f"mtp.{stage}"


def _unit_tensors(spec: ModelSpec, unit: str) -> Iterator[TensorSpec]:
    kind, _, number = unit.partition(".")
    if kind in ("embed", "final"):
        rows = _EMBED if kind == "embed" else _FINAL
        yield from _expand(rows, _dimensions(spec, 0), "", unit)
        return
    index = int(number)
    ratio = spec.ratios[index] if kind == "layers" else 0
    dimensions = _dimensions(spec, ratio)
    parts = [_HYPER, _ATTENTION]
    if ratio:
        parts.append(_COMPRESSOR)
    if ratio == CSA_RATIO:
        parts.append(_INDEXER)
    hashed = kind == "layers" and index < spec.hash_layers
    parts += [_FEED_FORWARD, _GATE_HASHED if hashed else _GATE_SCORED, _SHARED]
    if kind == "mtp" and index == 0:
        parts.append(_MTP_FIRST)
    if kind == "mtp" and spec.drafter and index == spec.drafter.stages - 1:
        parts.append(_MTP_LAST)
    for part in parts:
        yield from _expand(part, dimensions, f"{unit}.", unit)
    for expert in range(spec.experts):
        yield from _expand(_EXPERT, dimensions, f"{unit}.ffn.experts.{expert}.", unit)


def _expand(
    rows: _Rows, dimensions: dict[str, int], prefix: str, unit: str
) -> Iterator[TensorSpec]:
    """Turn lines of the table into tensors, a weight and its scale for FP8 and FP4 ones."""
    for row in rows:
        shape = tuple(_size(term, dimensions) for term in row.shape.split())
        component = row.component
        if unit.startswith("mtp."):
            component = _IN_MTP.get(component, component)
        name = prefix + row.name
        common = (shape, component, row.axis)
        if row.kind == "FP8":
            scale = tuple(-(-size // FP8_BLOCK) for size in shape)
            yield TensorSpec(f"{name}.weight", "F8_E4M3", shape, *common, FP8_BLOCK, unit)
            yield TensorSpec(f"{name}.scale", "F8_E8M0", scale, *common, 1, unit)
        elif row.kind == "FP4":
            codes, scale = (shape[0], shape[1] // 2), (shape[0], shape[1] // FP4_BLOCK)
            block = 1 if row.axis == 0 else FP4_BLOCK // 2
            yield TensorSpec(f"{name}.weight", "I8", codes, *common, block, unit)
            yield TensorSpec(f"{name}.scale", "F8_E8M0", scale, *common, 1, unit)
        else:
            yield TensorSpec(name, row.kind, shape, *common, 1, unit)


def _size(term: str, dimensions: dict[str, int]) -> int:
    """Evaluate "7", "hidden", "heads*head_dim" or "hidden+markov"."""
    if "+" in term:
        return sum(_size(part, dimensions) for part in term.split("+"))
    if "*" in term:
        return math.prod(_size(part, dimensions) for part in term.split("*"))
    return int(term) if term.isdigit() else dimensions[term]


def _dimensions(spec: ModelSpec, ratio: int) -> dict[str, int]:
    """Name the sizes that the table speaks of, for a layer of a ratio."""
    return {
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "heads": spec.heads,
        "head_dim": spec.head_dim,
        "q_lora": spec.q_lora,
        "o_lora": spec.o_lora,
        "o_groups": spec.o_groups,
        "group_dim": spec.group_dim,
        "index_heads": spec.index_heads,
        "index_dim": spec.index_dim,
        "experts": spec.experts,
        "topk": spec.topk,
        "intermediate": spec.intermediate,
        "streams": spec.streams,
        "mixing": spec.mixing,
        "ratio": ratio,
        "carry": {CSA_RATIO: 2 * spec.head_dim, HCA_RATIO: spec.head_dim}.get(ratio, 0),
        "markov": spec.drafter.markov_rank if spec.drafter else 0,
        "targets": len(spec.drafter.target_layers) if spec.drafter else 0,
    }
