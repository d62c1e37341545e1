"""Compares the drafter's training forward with a straight evaluation of its formulas.

Random small weights, one anchor at a time, loops over heads, streams and experts, nothing shared
with `training.drafter` but the numbers; also holds the batched decoder against the trunk's own
forward. Prints the largest differences and fails above 1e-3.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from training.drafter import Drafter, DraftShape, every_anchor
from training.generate import Decoder
from training.model import Mode, Trunk, head_logits
from training.oracle import randomise, small_config
from training.shape import Shape

Weights = dict[str, Tensor]


def norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
    x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    return x if weight is None else x * weight


def turned(x: Tensor, position: int, shape: Shape, back: bool = False) -> Tensor:
    """Plain rotary embedding of the last dims of one vector."""
    r = shape.qk_rope_head_dim
    out = x.clone()
    base = x.shape[-1] - r
    for i in range(r // 2):
        angle = torch.tensor(position * shape.rope_theta ** (-2 * i / r))
        cos, sin = torch.cos(angle), torch.sin(angle) * (-1 if back else 1)
        a, b = x[..., base + 2 * i], x[..., base + 2 * i + 1]
        out[..., base + 2 * i] = a * cos - b * sin
        out[..., base + 2 * i + 1] = a * sin + b * cos
    return out


def stored_row(x: Tensor, shape: Shape, rounding: bool) -> Tensor:
    """FP8 simulation of the dims that are not rotated, in blocks of 64 or less."""
    if not rounding:
        return x
    out = x.clone()
    for start in range(0, shape.head_dim - shape.qk_rope_head_dim, 64):
        part = x[start : min(start + 64, shape.head_dim - shape.qk_rope_head_dim)]
        scale = 2.0 ** math.ceil(math.log2(max(part.abs().max().item(), 1e-4) / 448))
        out[start : start + len(part)] = (part / scale).to(torch.float8_e4m3fn).float() * scale
    return out


def hyper(x: Tensor, w: Weights, part: str, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    n, eps = shape.hc_mult, shape.hc_eps
    flat = x.reshape(-1)
    m = (w[f"hc_{part}_fn"] @ flat) / torch.sqrt((flat * flat).mean() + 1e-6)
    base, scale = w[f"hc_{part}_base"], w[f"hc_{part}_scale"]
    pre = torch.sigmoid(m[:n] * scale[0] + base[:n]) + eps
    post = 2 * torch.sigmoid(m[n : 2 * n] * scale[1] + base[n : 2 * n])
    c = (m[2 * n :] * scale[2] + base[2 * n :]).view(n, n).softmax(1) + eps
    c = c / (c.sum(0, keepdim=True) + eps)
    for _ in range(shape.hc_sinkhorn_iters - 1):
        c = c / (c.sum(1, keepdim=True) + eps)
        c = c / (c.sum(0, keepdim=True) + eps)
    return sum(pre[s] * x[s] for s in range(n)), post, c


def written(x: Tensor, y: Tensor, post: Tensor, c: Tensor) -> Tensor:
    n = len(x)
    return torch.stack([post[k] * y + sum(c[j, k] * x[j] for j in range(n)) for k in range(n)])


def experts(x: Tensor, w: Weights, shape: Shape) -> Tensor:
    score = torch.sqrt(torch.log1p(torch.exp(w["ffn.gate.weight"] @ x)))
    chosen = torch.topk(score + w["ffn.gate.bias"], shape.num_experts_per_tok).indices.tolist()
    total = sum(score[e] for e in chosen)

    def one(w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
        gate = (w1 @ x).clamp(max=shape.swiglu_limit)
        up = (w3 @ x).clamp(-shape.swiglu_limit, shape.swiglu_limit)
        return w2 @ (gate * torch.sigmoid(gate) * up)

    out = one(*(w[f"ffn.shared_experts.w{i}.weight"] for i in (1, 2, 3)))
    for e in chosen:
        share = score[e] / total * shape.routed_scaling_factor
        out = out + share * one(*(w[f"ffn.experts.w{i}"][e] for i in (1, 2, 3)))
    return out


def attention(
    xs: list[Tensor], where: list[int], context: list[Tensor], w: Weights, s: Shape, rounding: bool
) -> list[Tensor]:
    heads, d = s.num_attention_heads, s.head_dim
    own = [
        stored_row(turned(norm(w["attn.wkv.weight"] @ x, w["attn.kv_norm.weight"]), t, s), s,
                   rounding)
        for x, t in zip(xs, where, strict=True)
    ]  # fmt: skip
    keys = context + own
    out = []
    for x, t in zip(xs, where, strict=True):
        low = norm(w["attn.wq_a.weight"] @ x, w["attn.q_norm.weight"])
        q = (w["attn.wq_b.weight"] @ low).view(heads, d)
        found = []
        for h in range(heads):
            query = turned(norm(q[h]), t, s)
            weight = torch.stack([torch.exp(query @ k / d**0.5) for k in keys])
            total = weight.sum() + torch.exp(w["attn.attn_sink"][h])
            mixed = sum(a * k for a, k in zip(weight / total, keys, strict=True))
            found.append(turned(mixed, t, s, back=True))
        groups = torch.cat(found).view(s.o_groups, -1)
        wo_a = w["attn.wo_a.weight"].view(s.o_groups, s.o_lora_rank, -1)
        narrow = torch.cat([wo_a[g] @ groups[g] for g in range(s.o_groups)])
        out.append(w["attn.wo_b.weight"] @ narrow)
    return out


def straight(
    stages: list[Weights],
    trunk: Weights,
    ids: list[int],
    features: Tensor,
    anchor: int,
    shape: Shape,
    draft: DraftShape,
    rounding: bool,
) -> tuple[Tensor, Tensor]:
    """Logits with the markov term and raw confidences of the rows of one anchor."""
    positions = range(max(0, anchor - 128), anchor)
    main = [norm(stages[0]["main_proj.weight"] @ features[j], stages[0]["main_norm.weight"])
            for j in positions]  # fmt: skip
    tokens = [ids[anchor], *[draft.noise] * (draft.block - 1)]
    where = [anchor + k for k in range(draft.block)]
    rows = [trunk["embed.weight"][t].expand(shape.hc_mult, -1) for t in tokens]
    for w in stages:
        context = [
            stored_row(turned(norm(w["attn.wkv.weight"] @ m, w["attn.kv_norm.weight"]), j, shape),
                       shape, rounding)
            for m, j in zip(main, positions, strict=True)
        ]  # fmt: skip
        parts = [hyper(x, w, "attn", shape) for x in rows]
        inputs = [norm(p[0], w["attn_norm.weight"]) for p in parts]
        ys = attention(inputs, where, context, w, shape, rounding)
        rows = [written(x, y, p[1], p[2]) for x, y, p in zip(rows, ys, parts, strict=True)]
        parts = [hyper(x, w, "ffn", shape) for x in rows]
        ys = [experts(norm(p[0], w["ffn_norm.weight"]), w, shape) for p in parts]
        rows = [written(x, y, p[1], p[2]) for x, y, p in zip(rows, ys, parts, strict=True)]
    w = stages[-1]
    logits, confidence = [], []
    for k, x in enumerate(rows):
        flat = x.reshape(-1)
        m = (w["hc_head_fn"] @ flat) / torch.sqrt((flat * flat).mean() + 1e-6)
        a = torch.sigmoid(m * w["hc_head_scale"] + w["hc_head_base"]) + shape.hc_eps
        hidden = sum(a[i] * x[i] for i in range(shape.hc_mult))
        e = w["markov_head.markov_w1.weight"][ids[anchor + k]]
        logits.append(trunk["head.weight"] @ norm(hidden, w["norm.weight"])
                      + w["markov_head.markov_w2.weight"] @ e)  # fmt: skip
        confidence.append(w["confidence_head.proj.weight"][0] @ torch.cat((hidden, e)))
    return torch.stack(logits), torch.stack(confidence)


def small_pair() -> tuple[Trunk, Drafter]:
    """Random trunk and drafter of sizes that a CPU runs in seconds."""
    values = small_config(Path(__file__).parent / "config.json")
    # 64 dims beside the rotated ones: a whole FP8 block.
    values |= {"head_dim": 80, "qk_rope_head_dim": 16}
    shape = Shape(
        **{n: values[n] for n in Shape.__dataclass_fields__ if n != "compress_ratios"},  # type: ignore[arg-type]
        compress_ratios=(0, 0, 4, 128, 4),
    )
    trunk, drafter = Trunk(shape).eval(), Drafter(shape, DraftShape(rank=8, noise=255)).eval()
    randomise(trunk, shape.n_routed_experts, 3)
    randomise(drafter, shape.n_routed_experts, 4)
    return trunk, drafter


def drafter_difference(rounding: bool) -> tuple[float, float]:
    """Largest differences of logits (as log-probabilities of the text) and confidences."""
    trunk, drafter = small_pair()
    ids = torch.randint(1, 255, (1, 385), generator=torch.Generator().manual_seed(5))
    ids[0, 0] = 0
    mode = Mode(rounding)
    grabbed: list[Tensor] = []

    def grab(x, target, before, after, last, model):  # type: ignore[no-untyped-def]
        from training.drafter import row_scores

        hidden = row_scores(x, target, before, after, last, model)
        grabbed.append(raw_logits(x, before, last, model))
        return hidden

    drafter.call_scores = grab
    features, last = trunk.features(ids[:, :-1], mode, drafter.draft.targets)
    anchors = every_anchor(1, 384, 128, ids.device)
    rows, _, _ = drafter(ids, anchors, features, last, trunk, mode)
    got = grabbed[0].view(384, drafter.draft.block, -1)
    weights = {n: p.detach() for n, p in trunk.state_dict().items()}
    stages = [dict(stage.state_dict()) for stage in drafter.mtp]
    worst, worst_confidence = 0.0, 0.0
    for anchor in (1, 2, 100, 127, 128, 129, 200, 301, 379):
        logits, confidence = straight(
            stages, weights, ids[0].tolist(), features[0], anchor, trunk.shape, drafter.draft,
            rounding,
        )  # fmt: skip
        worst = max(worst, (logits - got[anchor]).abs().max().item())
        difference = (confidence - rows.confidence[0, anchor]).abs().max().item()
        worst_confidence = max(worst_confidence, difference)
    return worst, worst_confidence


def raw_logits(x: Tensor, before: Tensor, last: torch.nn.Module, trunk: Trunk) -> Tensor:
    """The drafter's own logits, which `row_scores` keeps to itself."""
    from training.model import collapse, rms

    shape = trunk.shape
    hidden = collapse(x, last.hc_head_fn, last.hc_head_base, last.hc_head_scale, shape)
    _, more = last.markov_head(before)
    logits: Tensor = trunk.head(rms(hidden, last.norm.weight, shape.rms_norm_eps)) + more
    return logits


def decoder_difference() -> float:
    """Largest difference of logits between the decoder and the whole-sequence forward."""
    trunk, _ = small_pair()
    object.__setattr__(trunk.shape, "index_topk", 256)
    ids = torch.randint(1, 255, (3, 384), generator=torch.Generator().manual_seed(6))
    ids[:, 0] = 0
    ids[1, 90], ids[2, 200] = 0, 0
    x, _, _ = trunk.streams(ids, Mode(False))
    expected = head_logits(x, trunk)
    decoder = Decoder(trunk, 3, 384, Mode(False))
    got = torch.stack([decoder.step(ids[:, t], t) for t in range(384)], 1)
    return (got - expected).abs().max().item()


def main() -> None:
    with torch.no_grad():
        report = {
            "drafter": drafter_difference(False),
            "drafter, rows rounded": drafter_difference(True),
            "decoder": decoder_difference(),
        }
    print(json.dumps(report))
    worst = max(*report["drafter"], report["decoder"])  # type: ignore[misc]
    if not worst <= 1e-3:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
