"""The numbers of a configuration that the training code needs, read from config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """Sizes of one model of the DeepSeek-V4 family; the names are config.json's."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    sliding_window: int
    compress_ratios: tuple[int, ...]
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    num_hash_layers: int
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: dict[str, float]
    vocab_size: int

    @classmethod
    def read(cls, path: Path) -> Shape:
        """From a config.json; fields this code does not use are left alone."""
        values = json.loads(path.read_text())
        known = {name: values[name] for name in cls.__dataclass_fields__}
        ratios = values["compress_ratios"][: values["num_hidden_layers"]]
        known["compress_ratios"] = tuple(ratios)
        return cls(**known)
