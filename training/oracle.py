"""Compares the training forward with transformers' DeepseekV4ForCausalLM on random weights.

Runs on a CPU in float32 with every parameter randomised; prints the largest difference of any
logit and fails above 1e-3. Run it after any change to `training.model`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from tests.oracle.peer import native_name
from training.model import Mode, Trunk
from training.shape import Shape


def native_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """transformers' state dict under the checkpoint's names, experts stacked."""
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        ours = native_name(name)
        if ours.endswith("experts.gate_up_proj"):
            stem = ours.removesuffix("gate_up_proj")
            out[stem + "w1"], out[stem + "w3"] = value.chunk(2, 1)
        else:
            out[ours.replace("experts.down_proj", "experts.w2")] = value
    return out


def small_config(path: Path) -> dict[str, object]:
    """The shipped configuration with sizes that a CPU runs in seconds."""
    config = json.loads(path.read_text())
    config.update(
        vocab_size=256,
        hidden_size=64,
        moe_intermediate_size=32,
        num_attention_heads=4,
        head_dim=32,
        qk_rope_head_dim=8,
        q_lora_rank=32,
        o_groups=2,
        o_lora_rank=16,
        index_head_dim=16,
        index_topk=16,
        max_position_embeddings=1024,
    )
    config.pop("quantization_config")
    return config


def randomise(model: torch.nn.Module, experts: int, seed: int) -> None:
    """Fills every parameter and buffer that the checkpoint stores."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith("tid2eid"):
                first = torch.randint(0, experts, value.shape[:1], generator=generator)
                value.copy_(torch.stack((first, (first + 3) % experts), 1))
            elif value.is_floating_point():
                scale = 0.3 if value.ndim < 2 else value.shape[-1] ** -0.5
                noise = torch.randn(value.shape, generator=generator) * scale
                value.copy_(noise + ("norm" in name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path(__file__).parent / "config.json")
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--full", action="store_true", help="the shipped sizes, not small ones")
    args = parser.parse_args()
    values = json.loads(args.config.read_text()) if args.full else small_config(args.config)
    values.pop("quantization_config", None)
    theirs = DeepseekV4ForCausalLM(DeepseekV4Config(**values)).float().eval()
    randomise(theirs, int(str(values["n_routed_experts"])), seed=1)
    shape_values = {name: values[name] for name in Shape.__dataclass_fields__}
    shape_values["compress_ratios"] = tuple(shape_values["compress_ratios"])
    ours = Trunk(Shape(**shape_values)).eval()
    ours.load_state_dict(native_state(theirs.state_dict()))
    ids = torch.randint(1, int(str(values["vocab_size"])), (2, args.length))
    with torch.no_grad():
        expected = theirs(ids).logits
        got = ours(ids, Mode(cache=False, indexer=True, sparse=True))
    difference = (expected - got).abs().max().item()
    print(f"largest difference {difference:.2e}, largest logit {expected.abs().max().item():.2f}")
    if not difference <= 1e-3:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
