"""A model shape in the words of a published config.json: the inverse of reading one.

Owns the field names for writing. Knows no files.
"""

from typing import Any

from deskside.spec import ModelSpec

__all__ = ["published_config"]


def published_config(spec: ModelSpec) -> dict[str, Any]:
    """Return a config.json for which `ModelSpec.from_config` gives `spec` again."""
    config: dict[str, Any] = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": 1,
        "head_dim": spec.head_dim,
        "qk_rope_head_dim": spec.rope_dim,
        "q_lora_rank": spec.q_lora,
        "o_lora_rank": spec.o_lora,
        "o_groups": spec.o_groups,
        "index_n_heads": spec.index_heads,
        "index_head_dim": spec.index_dim,
        "index_topk": spec.index_topk,
        "sliding_window": spec.window,
        "compress_ratios": [*spec.ratios, *([0] * (spec.drafter.stages if spec.drafter else 0))],
        "n_routed_experts": spec.experts,
        "n_shared_experts": spec.shared_experts,
        "num_experts_per_tok": spec.topk,
        "moe_intermediate_size": spec.intermediate,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": spec.route_scale,
        "num_hash_layers": spec.hash_layers,
        "swiglu_limit": spec.swiglu_limit,
        "hidden_act": "silu",
        "hc_mult": spec.streams,
        "hc_sinkhorn_iters": spec.sinkhorn_iterations,
        "hc_eps": spec.hc_eps,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "compress_rope_theta": spec.compress_rope_theta,
        "max_position_embeddings": spec.max_positions,
        "vocab_size": spec.vocab,
        "tie_word_embeddings": False,
        "bos_token_id": spec.bos,
        "eos_token_id": spec.eos,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "torch_dtype": "bfloat16",
        "expert_dtype": "fp4",
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        },
    }
    if spec.yarn:
        config["rope_scaling"] = {
            "type": "yarn",
            "factor": spec.yarn.factor,
            "original_max_position_embeddings": spec.yarn.original,
            "beta_fast": spec.yarn.beta_fast,
            "beta_slow": spec.yarn.beta_slow,
        }
    if spec.drafter:
        config |= {
            "num_nextn_predict_layers": 1,
            "dspark_block_size": spec.drafter.block,
            "dspark_markov_rank": spec.drafter.markov_rank,
            "dspark_noise_token_id": spec.drafter.noise_token,
            "dspark_target_layer_ids": list(spec.drafter.target_layers),
        }
    return config
