"""The model's shapes and counts, read from a checkpoint's config.json.

Owns the translation of the published field names into one frozen record and refuses, in one line,
a configuration that this package does not serve. Knows no tensors and no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deskside.errors import CheckpointError

__all__ = ["DrafterSpec", "ModelSpec", "YarnSpec", "read_config"]

CSA_RATIO = 4
HCA_RATIO = 128
SERVED_RATIOS = (0, CSA_RATIO, HCA_RATIO)


@dataclass(frozen=True, slots=True)
class YarnSpec:
    """YaRN scaling of the rotary frequencies in compressed layers."""

    factor: float
    original: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """The checkpoint's DSpark drafter: gamma, Markov rank, noise token, source layers, stages."""

    block: int
    markov_rank: int
    noise_token: int
    target_layers: tuple[int, ...]
    stages: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Every number the model is built from. Lengths are counts, not bytes.

    `ratios` holds one compression ratio per trunk layer: 0 for a sliding window alone, 4 for
    overlapping compression with an indexer (CSA), 128 for plain compression (HCA).
    """

    hidden: int
    layers: int
    ratios: tuple[int, ...]
    heads: int
    head_dim: int
    rope_dim: int
    q_lora: int
    o_lora: int
    o_groups: int
    index_heads: int
    index_dim: int
    index_topk: int
    window: int
    experts: int
    shared_experts: int
    topk: int
    intermediate: int
    hash_layers: int
    route_scale: float
    swiglu_limit: float
    streams: int
    sinkhorn_iterations: int
    hc_eps: float
    norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    yarn: YarnSpec | None
    max_positions: int
    vocab: int
    bos: int
    eos: int
    drafter: DrafterSpec | None

    @property
    def nope_dim(self) -> int:
        """Dimensions of a head that are not rotated."""
        return self.head_dim - self.rope_dim

    @property
    def group_dim(self) -> int:
        """Width of one output group: its heads, concatenated."""
        return self.heads // self.o_groups * self.head_dim

    @property
    def mixing(self) -> int:
        """Rows of a hyper-connection's projection: pre, post and the square mixing matrix."""
        return self.streams * (2 + self.streams)

    @staticmethod
    def from_config(config: Mapping[str, Any], where: str = "config.json") -> "ModelSpec":
        """Read a parsed config.json.

        Raises:
            CheckpointError: a field is missing, has the wrong kind, or asks for something that
                is not served; the message names the field and `where`.
        """
        fields = _Fields(config, where)
        fields.refuse_foreign()
        layers = fields.count("num_hidden_layers")
        ratios = fields.ratios("compress_ratios", layers)
        spec = ModelSpec(
            hidden=fields.count("hidden_size"),
            layers=layers,
            ratios=ratios[:layers],
            heads=fields.count("num_attention_heads"),
            head_dim=fields.count("head_dim"),
            rope_dim=fields.count("qk_rope_head_dim"),
            q_lora=fields.count("q_lora_rank"),
            o_lora=fields.count("o_lora_rank"),
            o_groups=fields.count("o_groups"),
            index_heads=fields.count("index_n_heads"),
            index_dim=fields.count("index_head_dim"),
            index_topk=fields.count("index_topk"),
            window=fields.count("sliding_window"),
            experts=fields.count("n_routed_experts"),
            shared_experts=fields.count("n_shared_experts"),
            topk=fields.count("num_experts_per_tok"),
            intermediate=fields.count("moe_intermediate_size"),
            hash_layers=fields.count("num_hash_layers", least=0),
            route_scale=fields.number("routed_scaling_factor"),
            swiglu_limit=fields.number("swiglu_limit"),
            streams=fields.count("hc_mult"),
            sinkhorn_iterations=fields.count("hc_sinkhorn_iters"),
            hc_eps=fields.number("hc_eps"),
            norm_eps=fields.number("rms_norm_eps"),
            rope_theta=fields.number("rope_theta"),
            compress_rope_theta=fields.number("compress_rope_theta"),
            yarn=fields.yarn("rope_scaling"),
            max_positions=fields.count("max_position_embeddings"),
            vocab=fields.count("vocab_size"),
            bos=fields.count("bos_token_id", least=0),
            eos=fields.count("eos_token_id", least=0),
            drafter=fields.drafter(layers, len(ratios)),
        )
        spec._check(where)
        return spec

    def _check(self, where: str) -> None:
        rules = (
            (self.rope_dim <= self.head_dim, "qk_rope_head_dim exceeds head_dim"),
            (self.rope_dim % 2 == 0, "qk_rope_head_dim must be even"),
            (self.rope_dim <= self.index_dim, "qk_rope_head_dim exceeds index_head_dim"),
            (self.heads % self.o_groups == 0, "o_groups must divide num_attention_heads"),
            (self.topk <= self.experts, "num_experts_per_tok exceeds n_routed_experts"),
            (self.hidden % 32 == 0, "hidden_size must be a multiple of 32 (FP4 blocks)"),
            (self.intermediate % 32 == 0, "moe_intermediate_size must be a multiple of 32"),
            (self.hash_layers <= self.layers, "num_hash_layers exceeds num_hidden_layers"),
            (self.shared_experts == 1, "n_shared_experts must be 1"),
            (self.window == HCA_RATIO, f"sliding_window must be {HCA_RATIO}"),
            (max(self.bos, self.eos) < self.vocab, "bos_token_id or eos_token_id >= vocab_size"),
        )
        for holds, message in rules:
            if not holds:
                raise CheckpointError(f"{where}: {message}")


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to a parsed config.json, with errors that name the field."""

    config: Mapping[str, Any]
    where: str

    def get(self, name: str) -> Any:
        """Return a field that must be there."""
        if name not in self.config:
            raise CheckpointError(f"{self.where}: field {name!r} is missing")
        return self.config[name]

    def count(self, name: str, least: int = 1) -> int:
        """Return an integer field of at least `least`."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise CheckpointError(
                f"{self.where}: field {name!r} must be an integer >= {least}, got {value!r:.60}"
            )
        return value

    def number(self, name: str) -> float:
        """Return a positive finite number."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise CheckpointError(
                f"{self.where}: field {name!r} must be a positive number, got {value!r:.60}"
            )
        return float(value)

    def ratios(self, name: str, layers: int) -> tuple[int, ...]:
        """Return the compression ratios of trunk and drafter, trunk first."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) < layers:
            raise CheckpointError(f"{self.where}: field {name!r} must list a ratio for each layer")
        for ratio in value:
            if isinstance(ratio, bool) or ratio not in SERVED_RATIOS:
                raise CheckpointError(
                    f"{self.where}: {name!r} holds {ratio!r:.20}; served are 0, 4 and 128"
                )
        if any(value[layers:]):
            raise CheckpointError(f"{self.where}: drafter entries of {name!r} must be 0")
        return tuple(value)

    def yarn(self, name: str) -> YarnSpec | None:
        """Return the YaRN parameters, or None where the config scales nothing."""
        value = self.config.get(name)
        if value is None:
            return None
        if not isinstance(value, dict) or value.get("type", value.get("rope_type")) != "yarn":
            raise CheckpointError(f"{self.where}: field {name!r} must be of type 'yarn'")
        inner = _Fields(value, f"{self.where}: {name}")
        return YarnSpec(
            factor=inner.number("factor"),
            original=inner.count("original_max_position_embeddings"),
            beta_fast=inner.number("beta_fast"),
            beta_slow=inner.number("beta_slow"),
        )

    def drafter(self, layers: int, ratios: int) -> DrafterSpec | None:
        """Return the drafter's numbers, or None for a checkpoint without one."""
        if "dspark_block_size" not in self.config:
            return None
        if ratios == layers:
            raise CheckpointError(f"{self.where}: dspark_* is set but no stage has a ratio")
        targets = self.get("dspark_target_layer_ids")
        if not isinstance(targets, list) or not targets:
            raise CheckpointError(f"{self.where}: 'dspark_target_layer_ids' must list layers")
        if any(not isinstance(i, int) or not 0 <= i < layers for i in targets):
            raise CheckpointError(f"{self.where}: 'dspark_target_layer_ids' names no trunk layer")
        return DrafterSpec(
            block=self.count("dspark_block_size"),
            markov_rank=self.count("dspark_markov_rank"),
            noise_token=self.count("dspark_noise_token_id", least=0),
            target_layers=tuple(targets),
            stages=ratios - layers,
        )

    def refuse_foreign(self) -> None:
        """Refuse another model or number format by its own name."""
        kind = self.get("model_type")
        if kind != "deepseek_v4":
            raise CheckpointError(f"{self.where}: model_type is {kind!r:.60}, need 'deepseek_v4'")
        quantization = self.config.get("quantization_config")
        if not isinstance(quantization, dict):
            raise CheckpointError(f"{self.where}: field 'quantization_config' is missing")
        declared = json.dumps([quantization, self.config.get("expert_dtype")]).lower()
        if "nvfp4" in declared:
            raise CheckpointError(
                f"{self.where}: NVFP4 (E4M3 scale per 16 values) is declared; only MXFP4 "
                "(E8M0 scale per 32) is served, get the original checkpoint"
            )
        if self.config.get("expert_dtype") != "fp4":
            raise CheckpointError(f"{self.where}: expert_dtype must be 'fp4' (MXFP4)")
        for name, value in (
            ("quant_method", "fp8"),
            ("scale_fmt", "ue8m0"),
            ("weight_block_size", [128, 128]),
        ):
            if quantization.get(name) != value:
                raise CheckpointError(f"{self.where}: quantization_config.{name} must be {value!r}")
        for name, required in (
            ("scoring_func", "sqrtsoftplus"),
            ("topk_method", "noaux_tc"),
            ("norm_topk_prob", True),
            ("hidden_act", "silu"),
            ("num_key_value_heads", 1),
            ("tie_word_embeddings", False),
            ("attention_bias", False),
        ):
            if self.get(name) != required:
                raise CheckpointError(f"{self.where}: field {name!r} must be {required!r}")


def read_config(folder: Path) -> dict[str, Any]:
    """Parse `folder`/config.json.

    Raises:
        CheckpointError: the file is missing, not UTF-8 JSON, or not an object.
    """
    path = folder / "config.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not JSON ({error!s:.80})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return value
