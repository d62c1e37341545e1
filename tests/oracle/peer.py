"""The judge: transformers' own DeepSeek-V4 class with random weights, and our names for them.

Every parameter is random, also those that start at zero or one. Expert weights are first rounded to
MXFP4, so that both sides hold the very same numbers.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from deskside.formats import mxfp4
from deskside.formats.packed import Format, Packed
from deskside.ops.linear import Weight

TINY: Mapping[str, Any] = {
    "model_type": "deepseek_v4",
    "vocab_size": 256,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 5,
    "compress_ratios": [0, 0, 4, 128, 4],
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "o_groups": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_hash_layers": 3,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "sliding_window": 128,
    "index_n_heads": 32,
    "index_head_dim": 16,
    "index_topk": 8,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "swiglu_limit": 10.0,
    "hidden_act": "silu",
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "attention_bias": False,
    "expert_dtype": "fp4",
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
}

RENAMES = (
    (r"^model\.", ""),
    (r"^embed_tokens\.", "embed."),
    (r"^lm_head\.", "head."),
    (r"^hc_head\.hc_(\w+)$", r"hc_head_\1"),
    (r"input_layernorm", "attn_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"(attn|ffn)_hc\.(\w+)$", r"hc_\1_\2"),
    (r"self_attn\.sinks", "attn.attn_sink"),
    (r"compressor\.indexer\.scorer\.weights_proj", "indexer.weights_proj"),
    (r"compressor\.indexer\.q_b_proj", "indexer.wq_b"),
    (r"compressor\.indexer\.", "indexer.compressor."),
    (r"compressor\.kv_proj", "compressor.wkv"),
    (r"compressor\.gate_proj", "compressor.wgate"),
    (r"compressor\.position_bias", "compressor.ape"),
    (r"compressor\.kv_norm", "compressor.norm"),
    (r"q_a_proj", "wq_a"),
    (r"q_a_norm", "q_norm"),
    (r"q_b_proj", "wq_b"),
    (r"kv_proj", "wkv"),
    (r"o_a_proj", "wo_a"),
    (r"o_b_proj", "wo_b"),
    (r"mlp\.gate\.e_score_correction_bias", "ffn.gate.bias"),
    (r"mlp\.shared_experts\.gate_proj", "ffn.shared_experts.w1"),
    (r"mlp\.shared_experts\.up_proj", "ffn.shared_experts.w3"),
    (r"mlp\.shared_experts\.down_proj", "ffn.shared_experts.w2"),
    (r"mlp\.", "ffn."),
    (r"self_attn\.", "attn."),
)


def native_name(name: str) -> str:
    """Translate a parameter name of the judge into the checkpoint's."""
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def empty_peer(config: Mapping[str, Any]) -> DeepseekV4ForCausalLM:
    """Build the judge in float32 from a config.json; its weights are yet to be set."""
    settings = {k: v for k, v in config.items() if k not in ("model_type", "quantization_config")}
    peer = DeepseekV4ForCausalLM(DeepseekV4Config(**settings, attn_implementation="eager"))
    return peer.float().eval()


def peer_of(config: Mapping[str, Any], floats: Mapping[str, Tensor]) -> DeepseekV4ForCausalLM:
    """Build the judge with the numbers of a checkpoint, by stored name."""
    peer = empty_peer(config)
    with torch.no_grad():
        for name, tensor in peer.state_dict().items():
            tensor.copy_(_stored(native_name(name), tensor.shape[0], floats))
    return peer


def _stored(name: str, count: int, floats: Mapping[str, Tensor]) -> Tensor:
    stem, _, matrix = name.rpartition(".")
    if matrix == "gate_up_proj":
        halves = [[floats[f"{stem}.{e}.{w}.weight"] for w in ("w1", "w3")] for e in range(count)]
        return torch.stack([torch.cat(pair) for pair in halves])
    if matrix == "down_proj":
        return torch.stack([floats[f"{stem}.{expert}.w2.weight"] for expert in range(count)])
    return floats[name]


def random_peer(config: Mapping[str, Any], seed: int) -> DeepseekV4ForCausalLM:
    """Build the judge in float32 with every parameter and buffer random."""
    peer = empty_peer(config)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in peer.state_dict().items():
            tensor.copy_(_random(native_name(name), tensor, draw, config))
    return peer


def _random(name: str, like: Tensor, draw: torch.Generator, config: Mapping[str, Any]) -> Tensor:
    if name.endswith("tid2eid"):
        order = torch.rand(like.shape[0], config["n_routed_experts"], generator=draw)
        return order.argsort(1)[:, : like.shape[1]].to(like.dtype)
    noise = torch.randn(like.shape, generator=draw)
    if "norm" in name:
        return 1 + 0.2 * noise
    if name.endswith(("gate_up_proj", "down_proj")):
        return mxfp4.decode(*mxfp4.encode(noise * like.shape[-1] ** -0.5))
    if name.endswith(("_fn", ".weight")) and "embed" not in name:
        return noise * like.shape[-1] ** -0.5
    return noise * 0.5


def native_weights(peer: DeepseekV4ForCausalLM) -> dict[str, Weight]:
    """Return the judge's weights under the checkpoint's names, experts as packed banks."""
    weights: dict[str, Weight] = {}
    for name, tensor in peer.state_dict().items():
        ours = native_name(name)
        if ours.endswith("experts.gate_up_proj"):
            stem = ours.removesuffix("gate_up_proj")
            gate, up = tensor.chunk(2, dim=1)
            weights[stem + "w1"] = _packed(gate)
            weights[stem + "w3"] = _packed(up)
        elif ours.endswith("experts.down_proj"):
            weights[ours.replace("down_proj", "w2")] = _packed(tensor)
        else:
            weights[ours] = tensor
    return weights


def _packed(values: Tensor) -> Packed:
    packed = Packed(*mxfp4.encode(values), Format.MXFP4)
    assert torch.equal(packed.decode(), values)
    return packed
