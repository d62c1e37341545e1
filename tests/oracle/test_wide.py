"""One CSA and one HCA layer at the real widths, dense weights in FP8, against the judge."""

import re

import pytest
import torch

from deskside.formats import fp8
from deskside.formats.packed import Format, Packed
from deskside.spec import ModelSpec
from tests.oracle.peer import TINY, native_name, native_weights, random_peer
from tests.rig import Part, Rig, compiled_in_floats, random_ids

WIDE = {
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 2,
    "compress_ratios": [4, 128],
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "num_experts_per_tok": 6,
    "num_hash_layers": 1,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 24,
}
DENSE = re.compile(r"attn\.w|indexer\.wq_b|shared_experts\.w")
LENGTH = 270


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_real_widths() -> None:
    config = {**TINY, **WIDE}
    peer = random_peer(config, seed=1)
    packed = {}
    with torch.no_grad():
        for name, tensor in peer.state_dict().items():
            if DENSE.search(native_name(name)):
                codes, scales = fp8.encode(tensor)
                tensor.copy_(fp8.decode(codes, scales))
                packed[native_name(name)] = Packed(codes.view(torch.uint8), scales, Format.FP8)
    assert len(packed) == 2 * 8 + 1
    spec = ModelSpec.from_config(config)
    rig = Rig({**native_weights(peer), **packed}, spec, ops=compiled_in_floats())
    ids = random_ids(spec, LENGTH, seed=2)
    with torch.no_grad():
        judged = peer(torch.tensor([ids]), use_cache=False).logits[0]
    whole = rig.chunked(ids, [LENGTH])
    assert (whole - judged).abs().max() <= 1e-4
    assert torch.equal(rig.chunked(ids[:200], [130, 7, 1]), whole[:200])
    (row,) = rig.forward(Part(0, ids[200:201]))
    assert torch.equal(row[0], whole[200])
