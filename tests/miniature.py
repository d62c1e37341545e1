"""Random checkpoints of any shape, written in the published layout, for tests.

Every parameter is random, also those that training starts at zero or one. A tensor's numbers depend
on the seed and its name alone.
"""

import dataclasses
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import TORCH_TYPES, stream
from deskside.checkpoint.writer import write
from deskside.formats import fp8, mxfp4
from deskside.layout.names import TensorSpec
from deskside.layout.published import published_config
from deskside.spec import DrafterSpec, ModelSpec, YarnSpec

__all__ = ["MINIATURE", "miniature_spec", "read_floats", "write_miniature"]

MINIATURE = ModelSpec(
    hidden=128,
    layers=4,
    ratios=(0, 4, 128, 4),
    heads=4,
    head_dim=128,
    rope_dim=64,
    q_lora=128,
    o_lora=64,
    o_groups=2,
    index_heads=32,
    index_dim=64,
    index_topk=8,
    window=128,
    experts=8,
    shared_experts=1,
    topk=2,
    intermediate=128,
    hash_layers=1,
    route_scale=1.5,
    swiglu_limit=10.0,
    streams=4,
    sinkhorn_iterations=20,
    hc_eps=1e-6,
    norm_eps=1e-6,
    rope_theta=10_000.0,
    compress_rope_theta=160_000.0,
    yarn=YarnSpec(factor=16.0, original=65_536, beta_fast=32.0, beta_slow=1.0),
    max_positions=65_536,
    vocab=512,
    bos=0,
    eos=1,
    drafter=None,
)


def miniature_spec(*, drafter: bool | DrafterSpec = False, **shape: Any) -> ModelSpec:
    """Return `MINIATURE` with fields of ModelSpec replaced; `layers` follows `ratios`.

    `drafter` True adds three stages of a block of 5 that read the last three layers.
    """
    spec = dataclasses.replace(MINIATURE, **shape)
    spec = dataclasses.replace(spec, layers=len(spec.ratios))
    if drafter is True:
        drafter = DrafterSpec(
            block=5,
            markov_rank=32,
            noise_token=spec.vocab - 1,
            target_layers=tuple(range(spec.layers))[-3:],
            stages=3,
        )
    spec = dataclasses.replace(spec, drafter=drafter or None)
    return ModelSpec.from_config(published_config(spec))  # refuses what no config may say


def write_miniature(
    folder: Path,
    *,
    seed: int = 0,
    drafter: bool | DrafterSpec = False,
    weights: Mapping[str, Tensor] | None = None,
    shard_bytes: int | None = None,
    **shape: Any,
) -> ModelSpec:
    """Write a random checkpoint and return its spec.

    Args:
        folder: empty or new.
        seed: chooses every number that `weights` does not give.
        drafter: as `miniature_spec` takes it.
        weights: float tensors by stored name (`layers.0.attn.wq_a.weight`), in the logical shape
            [out, in]; quantized ones are encoded. All others are drawn.
        shard_bytes: largest file, as the writer takes it.
        shape: fields of ModelSpec: `ratios`, `hidden`, `heads`, `head_dim`, `vocab`, ...
    """
    spec = miniature_spec(drafter=drafter, **shape)
    given = weights or {}
    encoded: dict[str, tuple[Tensor, Tensor]] = {}

    def make(tensor: TensorSpec) -> Tensor:
        if tensor.dtype not in ("I8", "F8_E4M3", "F8_E8M0"):
            values = given.get(tensor.name)
            values = _draw(spec, tensor, tensor.name, seed) if values is None else values
            return values.to(TORCH_TYPES[tensor.dtype]).reshape(tensor.shape)
        name = tensor.name.removesuffix(".scale").removesuffix(".weight") + ".weight"
        if name not in encoded:  # codes and scales come one after the other
            encoded.clear()
            values = given[name] if name in given else _draw(spec, tensor, name, seed)
            assert values.shape == tensor.logical
            encoded[name] = (mxfp4 if ".experts." in name else fp8).encode(values)
        return encoded[name][tensor.dtype == "F8_E8M0"]

    write(folder, spec, make, shard_bytes=shard_bytes)
    return spec


def read_floats(folder: Path) -> dict[str, Tensor]:
    """Return a checkpoint's numbers: float32 by stored name, decoded where quantized, no scales.

    Hash tables stay int64.
    """
    stored = {spec.name: (spec.dtype, tensor) for spec, tensor in stream(Checkpoint.open(folder))}
    found = {}
    for name, (dtype, tensor) in stored.items():
        if dtype == "F8_E8M0":
            continue
        scale = stored.get(name.removesuffix(".weight") + ".scale")
        if scale is not None and dtype in ("I8", "F8_E4M3"):
            found[name] = (mxfp4 if dtype == "I8" else fp8).decode(tensor, scale[1])
        else:
            found[name] = tensor if dtype == "I64" else tensor.float()
    return found


def _draw(spec: ModelSpec, tensor: TensorSpec, name: str, seed: int) -> Tensor:
    """Draw the logical values of a tensor at a scale that keeps activations near one."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
    if name.endswith("tid2eid"):
        noise = torch.rand(spec.vocab, spec.experts, generator=generator)
        return noise.argsort(dim=1)[:, : spec.topk]
    shape = tensor.logical
    values = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return 1 + 0.1 * values
    if name.startswith("embed.") or name.endswith("attn_sink"):
        return values
    if len(shape) == 1 or name.endswith((".ape", "markov_w1.weight")):
        return 0.5 * values + (1.0 if name.endswith("_scale") else 0.0)
    return values / math.sqrt(shape[-1])
