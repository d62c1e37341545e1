"""Text that the trunk writes, for many sequences at once: a plain decoder with its own caches.

All sequences stand at the same position, so a step is one row each. Lengths are bound by what the
indexer would choose anyway (index_topk entries of four tokens), so it is not asked. The drafter is
trained on, and measured on, such text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.model import (
    NEG,
    Attention,
    Compressor,
    Mode,
    Trunk,
    head_logits,
    join_streams,
    joint_softmax,
    rms,
    rotate,
    split_streams,
)

SERVED = Mode(True)


@dataclass
class Cache:
    """Rows of one layer: window keys, and what the compressor has taken in and given out."""

    own: Tensor
    value: Tensor | None = None
    score: Tensor | None = None
    entries: Tensor | None = None

    @classmethod
    def of(cls, attn: Attention, batch: int, length: int) -> Cache:
        weight = attn.wkv.weight
        own = weight.new_zeros(batch, length, attn.shape.head_dim)
        if not attn.ratio:
            return cls(own)
        ring = weight.new_zeros(
            batch, 2 * attn.ratio, attn.compressor.wkv.weight.shape[0], dtype=torch.float32
        )
        count = max(length // attn.ratio, 1)
        return cls(own, ring, torch.full_like(ring, NEG), own.new_zeros(batch, count, own.shape[2]))


class Decoder:
    """Steps a batch of sequences by one token."""

    def __init__(self, trunk: Trunk, batch: int, length: int, mode: Mode = SERVED) -> None:
        shape = trunk.shape
        if length > 4 * shape.index_topk:
            raise ValueError(f"{length} tokens need the indexer; at most {4 * shape.index_topk}")
        self.trunk, self.shape, self.mode = trunk, shape, mode
        device = trunk.hc_head_base.device
        self.caches = [Cache.of(layer.attn, batch, length) for layer in trunk.layers]
        self.turns = [trunk.angles(length, c, device) for c in (False, True)]
        self.document = torch.zeros(batch, length, dtype=torch.long, device=device)

    def step(self, ids: Tensor, t: int) -> Tensor:
        """Logits after one more token of every sequence, [batch, vocabulary]."""
        before = self.document[:, t - 1] if t else 0
        self.document[:, t] = before + (ids == 0)
        x = F.embedding(ids[:, None], self.trunk.embed.weight).to(self.trunk.head.weight.dtype)
        x = x[:, :, None].expand(-1, -1, self.shape.hc_mult, -1).contiguous()
        eps = self.shape.rms_norm_eps
        for layer, cache in zip(self.trunk.layers, self.caches, strict=True):
            y, post, comb = split_streams(
                x, layer.hc_attn_fn, layer.hc_attn_base, layer.hc_attn_scale, self.shape
            )
            y = self.attend(layer.attn, cache, rms(y, layer.attn_norm.weight, eps), t)
            x = join_streams(x, y, post, comb)
            y, post, comb = split_streams(
                x, layer.hc_ffn_fn, layer.hc_ffn_base, layer.hc_ffn_scale, self.shape
            )
            y, _ = layer.ffn(rms(y, layer.ffn_norm.weight, eps), ids[:, None])
            x = join_streams(x, y, post, comb)
        return head_logits(x, self.trunk)[:, 0]

    def attend(self, attn: Attention, cache: Cache, x: Tensor, t: int) -> Tensor:
        shape, eps = self.shape, self.shape.rms_norm_eps
        cos, sin = self.turns[attn.ratio > 0]
        turn = (cos[t], sin[t])
        low = rms(attn.wq_a(x), attn.q_norm.weight, eps)
        query = attn.wq_b(low).view(len(x), shape.num_attention_heads, shape.head_dim)
        query = rotate(rms(query, None, eps), *turn) * shape.head_dim**-0.5
        row = rotate(rms(attn.wkv(x[:, 0]), attn.kv_norm.weight, eps), *turn)
        cache.own[:, t] = attn.cached(row, self.mode)
        first = max(0, t + 1 - shape.sliding_window)
        keys = cache.own[:, first : t + 1]
        here = self.document[:, t, None]
        near = torch.bmm(query, keys.mT).float()
        near = near.masked_fill((self.document[:, first : t + 1] != here)[:, None], NEG)
        sink = attn.attn_sink.float()[:, None]
        far = None
        if attn.ratio:
            self.compress(attn, cache, x[:, 0], t)
            count = (t + 1) // attn.ratio
            if count and cache.entries is not None:
                entries = cache.entries[:, :count]
                last = self.document[:, attn.ratio - 1 : t + 1 : attn.ratio]
                far = torch.bmm(query, entries.mT).float()
                far = far.masked_fill((last != here)[:, None], NEG)
        probability, more = joint_softmax(near, far, sink)
        out = torch.bmm(probability.to(x.dtype), keys)
        if far is not None:
            out = out + torch.bmm(more.to(x.dtype), entries)
        return attn.project(rotate(out, turn[0], -turn[1])[:, None])

    def compress(self, attn: Attention, cache: Cache, x: Tensor, t: int) -> None:
        """Takes in one row; writes an entry where a group is complete."""
        part: Compressor = attn.compressor
        ratio, d = part.ratio, part.width
        assert cache.value is not None
        assert cache.score is not None
        assert cache.entries is not None
        slot = t % (2 * ratio)
        cache.value[:, slot] = part.wkv(x).float()
        cache.score[:, slot] = part.wgate(x).float() + part.ape[t % ratio]
        if (t + 1) % ratio:
            return
        now = slice(slot + 1 - ratio, slot + 1)
        value, score = cache.value[:, now], cache.score[:, now]
        if ratio == 4:
            then = slice(ratio - now.start, 2 * ratio - now.start)
            value = torch.cat((cache.value[:, then, :d], value[..., d:]), 1)
            score = torch.cat((cache.score[:, then, :d], score[..., d:]), 1)
        pooled = (torch.softmax(score, 1) * value).sum(1).to(x.dtype)
        cos, sin = self.turns[1]
        start = t + 1 - ratio
        entry = rotate(rms(pooled, part.norm.weight, part.eps), cos[start], sin[start])
        cache.entries[:, t // ratio] = attn.cached(entry, self.mode)


def pick(logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """A token a row: the best at temperature 0, else a draw."""
    uniform = torch.rand(logits.shape, device=logits.device, generator=generator)
    noise = -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-7)))
    return (logits + noise * temperature[:, None]).argmax(-1)


@torch.no_grad()
def write_on(trunk: Trunk, prompts: Tensor, length: int, temperature: Tensor, seed: int) -> Tensor:
    """Prompts [batch, n] continued to `length` tokens at a temperature for each."""
    device = trunk.hc_head_base.device
    generator = torch.Generator(device).manual_seed(seed)
    decoder = Decoder(trunk, len(prompts), length)
    out = torch.zeros(len(prompts), length, dtype=torch.long, device=device)
    out[:, : prompts.shape[1]] = prompts.to(device)
    temperature = temperature.to(device)
    for t in range(length - 1):
        logits = decoder.step(out[:, t], t)
        if t + 1 >= prompts.shape[1]:
            out[:, t + 1] = pick(logits, temperature, generator)
    return out
