"""The DeepSeek-V4 trunk in plain torch, written for training whole sequences fast.

All experts are computed densely and weighted by the sparse routing weights; attention works on
query blocks of one window, with the compressed entries as a second block of keys and the sink as
one more term of the denominator. Parameters carry the checkpoint's names, experts are stacked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.quantize import fp4_cache, fp8_cache, hadamard
from training.sinkhorn import sinkhorn

if TYPE_CHECKING:
    from collections.abc import Callable

    from training.shape import Shape

NEG = -1e30


@dataclass(frozen=True)
class Mode:
    """What the forward does: cache rounding, the indexer's loss, attention to its choice alone."""

    cache: bool = True
    indexer: bool = False
    sparse: bool = False


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm over the last dim, computed in float32."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide if weight is None else wide * weight.float()).to(x.dtype)


def frequencies(shape: Shape, compressed: bool) -> Tensor:
    """Angles per position of each rotated pair."""
    dim = shape.qk_rope_head_dim
    base = shape.compress_rope_theta if compressed else shape.rope_theta
    plain = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if not compressed:
        return plain.float()
    yarn = shape.rope_scaling

    def turns(count: float) -> float:
        length = yarn["original_max_position_embeddings"]
        return dim * math.log(length / (count * 2 * math.pi)) / (2 * math.log(base))

    low, high = math.floor(turns(yarn["beta_fast"])), math.ceil(turns(yarn["beta_slow"]))
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)
    keep = 1 - ramp.clamp(0, 1)
    return (plain * keep + plain / yarn["factor"] * (1 - keep)).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates interleaved pairs of the last 2*k dims; cos and sin end in k."""
    width = 2 * cos.shape[-1]
    still, turned = x[..., :-width], x[..., -width:].float()
    a, b = turned.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((still, turned.to(x.dtype)), -1)


class Linear(nn.Module):
    """A weight and nothing else."""

    def __init__(self, out: int, inner: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, inner))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Norm(nn.Module):
    """The weight of an RMS norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class Compressor(nn.Module):
    """Pools groups of tokens into one entry per group (overlapping groups for ratio 4)."""

    def __init__(self, shape: Shape, ratio: int, width: int) -> None:
        super().__init__()
        self.ratio, self.width, self.eps = ratio, width, shape.rms_norm_eps
        inner = 2 * width if ratio == 4 else width
        self.wkv = Linear(inner, shape.hidden_size)
        self.wgate = Linear(inner, shape.hidden_size)
        self.ape = nn.Parameter(torch.zeros(ratio, inner))
        self.norm = Norm(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        entries, d = length // self.ratio, self.width
        x = x[:, : entries * self.ratio]
        group = (batch, entries, self.ratio, -1)
        value = self.wkv(x).float().view(group)
        score = self.wgate(x).float().view(group) + self.ape
        if self.ratio == 4:
            before = partial(F.pad, pad=(0, 0, 0, 0, 1, 0))
            value = torch.cat((before(value[:, :-1, :, :d]), value[..., d:]), 2)
            earlier = before(score[:, :-1, :, :d], value=NEG)
            score = torch.cat((earlier, score[..., d:]), 2)
        pooled = (torch.softmax(score, 2) * value).sum(2).to(x.dtype)
        first = slice(0, entries * self.ratio, self.ratio)
        return rotate(rms(pooled, self.norm.weight, self.eps), cos[first], sin[first])


class Indexer(nn.Module):
    """Scores compressed entries for every query; trained on detached inputs."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.width = shape.index_n_heads, shape.index_head_dim
        self.wq_b = Linear(self.heads * self.width, shape.q_lora_rank)
        self.weights_proj = Linear(self.heads, shape.hidden_size)
        self.compressor = Compressor(shape, 4, self.width)

    def forward(self, x: Tensor, low: Tensor, cos: Tensor, sin: Tensor, simulate: bool) -> Tensor:
        batch, length, _ = x.shape
        query = self.wq_b(low).view(batch, length, self.heads, self.width)
        query = rotate(query, cos[:, None], sin[:, None])
        key = self.compressor(x, cos, sin)
        if simulate:
            query, key = fp4_cache(hadamard(query)), fp4_cache(hadamard(key))
        raw = torch.bmm(query.flatten(1, 2), key.mT).view(batch, length, self.heads, -1)
        weight = self.weights_proj(x).float() * (self.width * self.heads) ** -0.5
        return (raw.float().relu() * weight[..., None]).sum(2)


def choose(score: Tensor, visible: Tensor, count: int) -> Tensor:
    """The mask of the `count` best visible entries of each query."""
    score = score.masked_fill(~visible, NEG)
    if score.shape[-1] <= count:
        return visible
    least = score.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    return visible & (score >= least)


def index_loss(score: Tensor, kept: Tensor, attention: Tensor) -> Tensor:
    """Mean KL divergence from the heads' summed attention to the index scores."""
    target = attention / attention.sum(-1, keepdim=True).clamp(min=1e-9)
    log_p = torch.log_softmax(score.masked_fill(~kept, NEG), -1)
    terms = torch.where(kept, target * (torch.log(target.clamp(min=1e-9)) - log_p), 0.0)
    return terms.sum(-1).mean()


class Attention(nn.Module):
    """Window attention with a sink, joined by compressed entries where the ratio is not 0."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.shape, self.ratio = shape, shape.compress_ratios[layer]
        d, heads, hidden = shape.head_dim, shape.num_attention_heads, shape.hidden_size
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.wq_a = Linear(shape.q_lora_rank, hidden)
        self.q_norm = Norm(shape.q_lora_rank)
        self.wq_b = Linear(heads * d, shape.q_lora_rank)
        self.wkv = Linear(d, hidden)
        self.kv_norm = Norm(d)
        inner = heads * d // shape.o_groups
        self.wo_a = Linear(shape.o_groups * shape.o_lora_rank, inner)
        self.wo_b = Linear(hidden, shape.o_groups * shape.o_lora_rank)
        if self.ratio:
            self.compressor = Compressor(shape, self.ratio, d)
        if self.ratio == 4:
            self.indexer = Indexer(shape)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, document: Tensor, mode: Mode
    ) -> tuple[Tensor, Tensor]:
        shape, eps = self.shape, self.shape.rms_norm_eps
        batch, length, _ = x.shape
        heads, d = shape.num_attention_heads, shape.head_dim
        low = rms(self.wq_a(x), self.q_norm.weight, eps)
        query = self.wq_b(low).view(batch, length, heads, d)
        query = rotate(rms(query, None, eps), cos[:, None], sin[:, None]) * d**-0.5
        own = rotate(rms(self.wkv(x), self.kv_norm.weight, eps), cos, sin)
        own = self.cached(own, mode)
        window, window_logits = self.window(query, own, document)
        loss = x.new_zeros((), dtype=torch.float32)
        sink = self.attn_sink.float()[:, None]
        if not self.ratio:
            probability, _ = joint_softmax(window_logits, None, sink)
            out = self.mix(probability, window)
        else:
            entries = self.cached(self.compressor(x, cos, sin), mode)
            mask = self.visible(document, entries.shape[1])
            score = None
            if self.ratio == 4 and mode.indexer:
                score = self.indexer(x.detach(), low.detach(), cos, sin, mode.cache)
                if mode.sparse:
                    mask = choose(score.detach(), mask, shape.index_topk)
            logits = torch.bmm(query.flatten(1, 2), entries.mT)
            logits = logits.view(batch, length, heads, -1).float()
            logits = logits.masked_fill(~mask[:, :, None], NEG)
            probability, more = joint_softmax(window_logits, logits, sink)
            out = self.mix(probability, window)
            out = out + torch.bmm(more.to(x.dtype).flatten(1, 2), entries).view(out.shape)
            if score is not None:
                loss = index_loss(score, mask, more.detach().float().sum(2))
        out = rotate(out, cos[:, None], -sin[:, None])
        return self.project(out), loss

    def cached(self, rows: Tensor, mode: Mode) -> Tensor:
        """Rounds what a cache would store in FP8: the dims that are not rotated."""
        if not mode.cache:
            return rows
        still = self.shape.head_dim - self.shape.qk_rope_head_dim
        return torch.cat((fp8_cache(rows[..., :still]), rows[..., still:]), -1)

    def window(self, query: Tensor, own: Tensor, document: Tensor) -> tuple[Tensor, Tensor]:
        """Keys of each block of queries (the block before and its own) and the masked logits."""
        batch, length, heads, d = query.shape
        size = self.shape.sliding_window
        blocks = length // size
        pad = F.pad(own, (0, 0, size, 0)).view(batch, blocks + 1, size, d)
        keys = torch.cat((pad[:, :-1], pad[:, 1:]), 2).flatten(0, 1)
        logits = torch.bmm(query.view(batch * blocks, size * heads, d), keys.mT)
        logits = logits.view(batch, blocks, size, heads, 2 * size).float()
        doc = F.pad(document, (size, 0), value=-1).view(batch, blocks + 1, size)
        doc_keys = torch.cat((doc[:, :-1], doc[:, 1:]), 2)
        i = torch.arange(size, device=query.device)[:, None]
        j = torch.arange(2 * size, device=query.device)[None, :]
        near = (j > i) & (j <= i + size)
        same = doc_keys[:, :, None, :] == doc[:, 1:, :, None]
        logits = logits.masked_fill(~(near & same)[:, :, :, None, :], NEG)
        return keys, logits.view(batch, length, heads, 2 * size)

    def mix(self, probability: Tensor, keys: Tensor) -> Tensor:
        """Weighted sum of the window's rows."""
        batch, length, heads, width = probability.shape
        flat = probability.to(keys.dtype).view(keys.shape[0], -1, width)
        return torch.bmm(flat, keys).view(batch, length, heads, -1)

    def visible(self, document: Tensor, entries: int) -> Tensor:
        """Finished entries that end in the query's own document."""
        length = document.shape[1]
        position = torch.arange(length, device=document.device)
        index = torch.arange(entries, device=document.device)
        done = index[None, :] < ((position + 1) // self.ratio)[:, None]
        last = document[:, self.ratio - 1 :: self.ratio][:, :entries]
        return done & (document[:, :, None] == last[:, None, :])

    def project(self, out: Tensor) -> Tensor:
        """The grouped low-rank output projection."""
        batch, length = out.shape[:2]
        groups, rank = self.shape.o_groups, self.shape.o_lora_rank
        weight = self.wo_a.weight.view(groups, rank, -1)
        grouped = out.view(batch * length, groups, -1).transpose(0, 1)
        narrow = torch.bmm(grouped, weight.mT).transpose(0, 1).reshape(batch, length, -1)
        return self.wo_b(narrow)


def joint_softmax(near: Tensor, far: Tensor | None, sink: Tensor) -> tuple[Tensor, Tensor]:
    """One softmax over window logits, entry logits and the sink, which takes its share away."""
    top = torch.maximum(near.amax(-1, keepdim=True), sink)
    if far is not None:
        top = torch.maximum(top, far.amax(-1, keepdim=True))
    top = top.detach()
    near = torch.exp(near - top)
    total = near.sum(-1, keepdim=True) + torch.exp(sink - top)
    if far is None:
        return near / total, near
    far = torch.exp(far - top)
    total = total + far.sum(-1, keepdim=True)
    return near / total, far / total


class Gate(nn.Module):
    """The router: scores from a linear, the choice from scores plus bias or from the token."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(shape.n_routed_experts, shape.hidden_size))
        self.hashed = layer < shape.num_hash_layers
        if self.hashed:
            table = torch.zeros(shape.vocab_size, shape.num_experts_per_tok, dtype=torch.long)
            self.register_buffer("tid2eid", table)
        else:
            self.register_buffer("bias", torch.zeros(shape.n_routed_experts))

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Routing weights [n, experts], zero where not chosen, and the load of each expert."""
        score = F.softplus(F.linear(x.float(), self.weight.float())).sqrt()
        experts = torch.arange(self.shape.n_routed_experts, device=x.device)
        if self.hashed:
            chosen = (self.tid2eid[ids][..., None] == experts).any(1)
        else:
            rank = score.detach() + self.bias
            chosen = torch.zeros_like(rank, dtype=torch.bool)
            for _ in range(self.shape.num_experts_per_tok):
                best = rank.argmax(-1, keepdim=True) == experts
                chosen = chosen | best
                rank = rank.masked_fill(best, -torch.inf)
        score = score * chosen
        weight = score / score.sum(-1, keepdim=True) * self.shape.routed_scaling_factor
        return weight, chosen.float().sum(0)


class Experts(nn.Module):
    """Stacked routed experts."""

    def __init__(self, count: int, inner: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(count, inner, hidden))
        self.w3 = nn.Parameter(torch.empty(count, inner, hidden))
        self.w2 = nn.Parameter(torch.empty(count, hidden, inner))


class Shared(nn.Module):
    """The expert every token visits."""

    def __init__(self, inner: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = Linear(inner, hidden), Linear(inner, hidden)
        self.w2 = Linear(hidden, inner)


class MoE(nn.Module):
    """Routed and shared experts as two matrix products over all experts."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.limit = shape.swiglu_limit
        self.gate = Gate(shape, layer)
        inner, hidden = shape.moe_intermediate_size, shape.hidden_size
        self.experts = Experts(shape.n_routed_experts, inner, hidden)
        self.shared_experts = Shared(inner, hidden)

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, hidden = x.shape
        flat = x.view(-1, hidden)
        weight, load = self.gate(flat, ids.reshape(-1))
        weight = F.pad(weight, (0, 1), value=1.0)
        e, s = self.experts, self.shared_experts
        up = torch.cat((e.w1.flatten(0, 1), s.w1.weight, e.w3.flatten(0, 1), s.w3.weight))
        down = torch.cat((e.w2.transpose(0, 1).flatten(1), s.w2.weight), 1)
        both = F.linear(flat, up).view(flat.shape[0], 2, weight.shape[1], -1)
        gate = both[:, 0].float().clamp(max=self.limit)
        value = both[:, 1].float().clamp(-self.limit, self.limit)
        mid = (F.silu(gate) * value * weight[..., None]).to(x.dtype).flatten(1)
        return F.linear(mid, down).view(batch, length, hidden), load


def split_streams(
    x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Collapses the residual streams: the sub-layer's input, and how to write its output back."""
    n, eps = shape.hc_mult, shape.hc_eps
    flat = x.flatten(2)
    norm = torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + shape.rms_norm_eps)
    mixed = F.linear(flat, fn.to(x.dtype)).float() * norm
    pre = torch.sigmoid(mixed[..., :n] * scale[0] + base[:n]) + eps
    post = 2 * torch.sigmoid(mixed[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = (mixed[..., 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n)
    comb = sinkhorn(comb, shape.hc_sinkhorn_iters, eps).view(*x.shape[:2], n, n)
    return (pre[..., None] * x.float()).sum(2).to(x.dtype), post, comb


def join_streams(x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Writes a sub-layer's output into the mixed streams."""
    wide = x.float()
    mixed = (comb[..., None] * wide[:, :, :, None, :]).sum(2)
    return (mixed + post[..., None] * y.float()[:, :, None, :]).to(x.dtype)


class Layer(nn.Module):
    """Attention and experts, each inside hyper-connections."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.shape = shape
        self.attn = Attention(shape, layer)
        self.ffn = MoE(shape, layer)
        self.attn_norm, self.ffn_norm = Norm(shape.hidden_size), Norm(shape.hidden_size)
        n = shape.hc_mult
        for part in ("attn", "ffn"):
            width = (2 + n) * n
            setattr(self, f"hc_{part}_fn", nn.Parameter(torch.empty(width, n * shape.hidden_size)))
            setattr(self, f"hc_{part}_base", nn.Parameter(torch.zeros(width)))
            setattr(self, f"hc_{part}_scale", nn.Parameter(torch.ones(3)))

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, ids: Tensor, document: Tensor, mode: Mode
    ) -> tuple[Tensor, Tensor, Tensor]:
        eps = self.shape.rms_norm_eps
        y, post, comb = split_streams(
            x, self.hc_attn_fn, self.hc_attn_base, self.hc_attn_scale, self.shape
        )
        y, loss = self.attn(rms(y, self.attn_norm.weight, eps), cos, sin, document, mode)
        x = join_streams(x, y, post, comb)
        y, post, comb = split_streams(
            x, self.hc_ffn_fn, self.hc_ffn_base, self.hc_ffn_scale, self.shape
        )
        y, load = self.ffn(rms(y, self.ffn_norm.weight, eps), ids)
        return join_streams(x, y, post, comb), loss, load


class Trunk(nn.Module):
    """The whole model; `compile_parts` replaces the pieces that a compiler may fuse."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, i) for i in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size)
        self.head = Linear(shape.vocab_size, shape.hidden_size)
        n = shape.hc_mult
        self.hc_head_fn = nn.Parameter(torch.empty(n, n * shape.hidden_size))
        self.hc_head_base = nn.Parameter(torch.zeros(n))
        self.hc_head_scale = nn.Parameter(torch.ones(1))
        self.call_layer: Callable[..., tuple[Tensor, Tensor, Tensor]] = call_layer
        self.call_loss: Callable[..., Tensor] = head_loss

    def compile_parts(self) -> None:
        """Hands each kind of layer and the loss to the compiler, one variant a kind and mode."""
        torch._dynamo.config.recompile_limit = 64
        self.call_layer = torch.compile(call_layer, dynamic=False)
        self.call_loss = torch.compile(head_loss, dynamic=False)

    def angles(self, length: int, compressed: bool, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin of every position."""
        turn = frequencies(self.shape, compressed).to(device)
        angle = torch.arange(length, device=device).float()[:, None] * turn
        return angle.cos(), angle.sin()

    def streams(
        self, ids: Tensor, mode: Mode, seen: Callable[[int, Tensor], None] | None = None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The residual after the last layer, the indexers' loss and each layer's load."""
        document = (ids == 0).cumsum(1)
        x = F.embedding(ids, self.embed.weight).to(self.head.weight.dtype)
        x = x[:, :, None].expand(-1, -1, self.shape.hc_mult, -1).contiguous()
        turns = [self.angles(ids.shape[1], c, ids.device) for c in (False, True)]
        loss, loads = x.new_zeros((), dtype=torch.float32), []
        for index, layer in enumerate(self.layers):
            cos, sin = turns[self.shape.compress_ratios[index] > 0]
            x, extra, load = self.call_layer(layer, x, cos, sin, ids, document, mode)
            loss = loss + extra
            loads.append(load)
            if seen:
                seen(index, x)
        return x, loss, loads

    def forward(self, ids: Tensor, mode: Mode) -> Tensor:
        """Logits of every position."""
        x, _, _ = self.streams(ids, mode)
        return head_logits(x, self)

    def features(self, ids: Tensor, mode: Mode, targets: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The mean of the streams after each target layer, end to end, and the last residual."""
        found: dict[int, Tensor] = {}
        x, _, _ = self.streams(ids, mode, lambda i, y: found.update({i: y}))
        means = [found[i].float().mean(2).to(x.dtype) for i in targets]
        return torch.cat(means, -1), x

    def losses(self, ids: Tensor, mode: Mode) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Cross entropy of every next token, the indexers' loss, and the loads."""
        x, index, loads = self.streams(ids[:, :-1], mode)
        return self.call_loss(x, ids[:, 1:], self), index, loads


def call_layer(layer: Layer, *args: object) -> tuple[Tensor, Tensor, Tensor]:
    """One layer; a function of its own so that it can be compiled by itself."""
    result: tuple[Tensor, Tensor, Tensor] = layer(*args)
    return result


def collapse(x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, shape: Shape) -> Tensor:
    """The weighted sum of the streams that the head reads."""
    flat = x.flatten(2)
    norm = torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + shape.rms_norm_eps)
    mixed = F.linear(flat, fn.to(x.dtype)).float() * norm
    weight = torch.sigmoid(mixed * scale + base) + shape.hc_eps
    return (weight[..., None] * x.float()).sum(2).to(x.dtype)


def head_logits(x: Tensor, trunk: Trunk) -> Tensor:
    """Collapses the streams and projects to the vocabulary, in float32 at the end."""
    shape = trunk.shape
    out = collapse(x, trunk.hc_head_fn, trunk.hc_head_base, trunk.hc_head_scale, shape)
    return trunk.head(rms(out, trunk.norm.weight, shape.rms_norm_eps)).float()


def head_loss(x: Tensor, target: Tensor, trunk: Trunk) -> Tensor:
    """Cross entropy of each position, [batch, length]."""
    logits = head_logits(x, trunk)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(
        target.shape
    )


def initialise(model: Trunk, seed: int) -> None:
    """Fills every parameter; matrices by fan-in, outputs small, streams told apart."""
    generator = torch.Generator().manual_seed(seed)
    shape = model.shape
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or name.endswith("ape"):
                continue
            scale = parameter.shape[-1] ** -0.5
            if name.endswith("_fn"):
                scale = 0.02
            elif name.startswith("embed"):
                scale = 0.5
            elif name.endswith(("wo_b.weight", "w2", "w2.weight", "head.weight")):
                scale *= 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        n = shape.hc_mult
        for index, layer in enumerate(model.layers):
            for part, step in (("attn", 2 * index), ("ffn", 2 * index + 1)):
                base = getattr(layer, f"hc_{part}_base")
                base[:n] = -1.0
                base[step % n] = 1.0
                base[n : 2 * n] = torch.randn(n, generator=generator) * 0.5
                base[2 * n :] = 3.0 * torch.eye(n).flatten()
                getattr(layer, f"hc_{part}_scale").fill_(0.1)
            if layer.ffn.gate.hashed:
                layer.ffn.gate.tid2eid.copy_(hash_table(shape, generator))
        model.hc_head_scale.fill_(0.1)


def hash_table(shape: Shape, generator: torch.Generator) -> Tensor:
    """Two (or more) different experts per token id, every combination equally often."""
    experts = torch.arange(shape.n_routed_experts)
    combinations = torch.combinations(experts, shape.num_experts_per_tok)
    order = torch.randperm(shape.vocab_size, generator=generator)
    return combinations[order % len(combinations)]
