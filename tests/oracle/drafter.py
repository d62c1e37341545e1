"""The drafter a second time: straight from its formulas, one vector after the other.

Nothing is cached and nothing is shared with the package: the context of every position is computed
anew from the target's features, every row attends by a plain loop. Slow, and meant to be read.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["StraightDraft", "StraightDrafter"]

Choose = Callable[[int, Tensor], int]
"""From a place of the block and its logits [vocab] to a token."""


@dataclass(frozen=True)
class StraightDraft:
    """One block: tokens, logits [block, vocab] and confidences."""

    tokens: list[int]
    logits: Tensor
    confidences: list[float]


class StraightDrafter:
    """The formulas over the numbers of a checkpoint, float32."""

    def __init__(
        self, config: Mapping[str, Any], floats: Mapping[str, Tensor], eight_bits: bool = False
    ) -> None:
        """Take a checkpoint's numbers; with `eight_bits` keys are rounded as an FP8 cache does."""
        self.config = config
        self.floats = floats
        self.eight_bits = eight_bits
        self.stages = len(config["compress_ratios"]) - config["num_hidden_layers"]
        self.eps = config["rms_norm_eps"]

    def get(self, name: str) -> Tensor:
        return self.floats[name]

    def rms(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        scaled = x / torch.sqrt((x * x).mean() + self.eps)
        return scaled if weight is None else scaled * weight

    def turn(self, x: Tensor, position: int, back: bool = False) -> Tensor:
        """Rotate pairs of the last dimensions by position * theta^(-2i / rope)."""
        rope = self.config["qk_rope_head_dim"]
        first = x.shape[0] - rope
        turned = x.clone()
        for i in range(rope // 2):
            angle = position * self.config["rope_theta"] ** (-2 * i / rope)
            cos, sin = math.cos(angle), math.sin(-angle if back else angle)
            a, b = x[first + 2 * i], x[first + 2 * i + 1]
            turned[first + 2 * i] = a * cos - b * sin
            turned[first + 2 * i + 1] = a * sin + b * cos
        return turned

    def key(self, stage: int, x: Tensor, position: int) -> Tensor:
        """Return the key, which is the value too, that an input leaves at a position."""
        name = f"mtp.{stage}.attn"
        row = self.rms(self.get(f"{name}.wkv.weight") @ x, self.get(f"{name}.kv_norm.weight"))
        turned = self.turn(row, position)
        return self.stored(turned) if self.eight_bits else turned

    def stored(self, row: Tensor) -> Tensor:
        """Round blocks of 64 to E4M3, scaled by the least power of two, and the tail to BF16."""
        plain = row.shape[0] - self.config["qk_rope_head_dim"]
        parts = []
        for block in row[:plain].split(64):
            scale = 2.0 ** math.ceil(math.log2(max(float(block.abs().max()), 1e-4) / 448))
            parts.append((block / scale).to(torch.float8_e4m3fn).float() * scale)
        return torch.cat((*parts, row[plain:].bfloat16().float()))

    def context(self, stage: int, feature: Tensor, position: int) -> Tensor:
        x = self.rms(
            self.get("mtp.0.main_proj.weight") @ feature, self.get("mtp.0.main_norm.weight")
        )
        return self.key(stage, x, position)

    def attend(self, stage: int, x: Tensor, position: int, keys: Sequence[Tensor]) -> Tensor:
        name = f"mtp.{stage}.attn"
        heads, width = self.config["num_attention_heads"], self.config["head_dim"]
        low = self.rms(self.get(f"{name}.wq_a.weight") @ x, self.get(f"{name}.q_norm.weight"))
        queries = (self.get(f"{name}.wq_b.weight") @ low).view(heads, width)
        outputs = []
        for head in range(heads):
            q = self.turn(self.rms(queries[head]), position)
            scores = torch.stack([q @ key for key in keys]) / math.sqrt(width)
            weights = torch.exp(scores)
            total = weights.sum() + torch.exp(self.get(f"{name}.attn_sink")[head])
            mixed = sum(w * key for w, key in zip(weights / total, keys, strict=True))
            outputs.append(self.turn(mixed, position, back=True))
        groups = self.config["o_groups"]
        first = self.get(f"{name}.wo_a.weight").chunk(groups)
        parts = torch.cat(outputs).chunk(groups)
        joined = torch.cat([w @ part for w, part in zip(first, parts, strict=True)])
        return self.get(f"{name}.wo_b.weight") @ joined

    def expert(self, name: str, x: Tensor) -> Tensor:
        limit = self.config["swiglu_limit"]
        gate = (self.get(f"{name}.w1.weight") @ x).clamp(max=limit)
        up = (self.get(f"{name}.w3.weight") @ x).clamp(-limit, limit)
        return self.get(f"{name}.w2.weight") @ (gate * torch.sigmoid(gate) * up)

    def experts(self, stage: int, x: Tensor) -> Tensor:
        name = f"mtp.{stage}.ffn"
        scores = torch.log1p(torch.exp(self.get(f"{name}.gate.weight") @ x)).sqrt()
        chosen = (scores + self.get(f"{name}.gate.bias")).topk(self.config["num_experts_per_tok"])
        total = sum(scores[e] for e in chosen.indices.tolist())
        output = self.expert(f"{name}.shared_experts", x)
        for e in chosen.indices.tolist():
            weight = scores[e] / total * self.config["routed_scaling_factor"]
            output = output + weight * self.expert(f"{name}.experts.{e}", x)
        return output

    def connection(
        self, stage: int, part: str, streams: Tensor, run: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Run a sub-layer between the two halves of its hyper-connection; streams [S, hidden]."""
        count, eps = streams.shape[0], self.config["hc_eps"]
        name = f"mtp.{stage}.hc_{part}"
        flat = streams.flatten()
        mixed = self.get(f"{name}_fn") @ flat / torch.sqrt((flat * flat).mean() + self.eps)
        base, scale = self.get(f"{name}_base"), self.get(f"{name}_scale")
        before = torch.sigmoid(mixed[:count] * scale[0] + base[:count]) + eps
        after = 2 * torch.sigmoid(mixed[count : 2 * count] * scale[1] + base[count : 2 * count])
        square = (mixed[2 * count :] * scale[2] + base[2 * count :]).view(count, count)
        square = torch.softmax(square, dim=1) + eps
        square = square / (square.sum(0, keepdim=True) + eps)
        for _ in range(self.config["hc_sinkhorn_iters"] - 1):
            square = square / (square.sum(1, keepdim=True) + eps)
            square = square / (square.sum(0, keepdim=True) + eps)
        x = sum(before[s] * streams[s] for s in range(count))
        y = run(self.rms(x, self.get(f"mtp.{stage}.{part}_norm.weight")))
        return torch.stack(
            [
                after[k] * y + sum(square[j, k] * streams[j] for j in range(count))
                for k in range(count)
            ]
        )

    def stage(self, stage: int, block: list[Tensor], features: Tensor, anchor: int) -> list[Tensor]:
        """Run the streams of all rows of a block through one stage."""
        first = max(0, anchor - self.config["sliding_window"])
        keys = [self.context(stage, features[j], j) for j in range(first, anchor)]

        def note(row: int) -> Callable[[Tensor], Tensor]:
            def keep(x: Tensor) -> Tensor:
                inputs[row] = x
                return x

            return keep

        inputs: dict[int, Tensor] = {}
        for row, streams in enumerate(block):
            self.connection(stage, "attn", streams, note(row))
        keys += [self.key(stage, inputs[row], anchor + row) for row in range(len(block))]
        following = []
        for row, streams in enumerate(block):
            at = anchor + row
            streams = self.connection(
                stage, "attn", streams, lambda x, at=at: self.attend(stage, x, at, keys)
            )
            following.append(
                self.connection(stage, "ffn", streams, lambda x: self.experts(stage, x))
            )
        return following

    def collapse(self, streams: Tensor) -> Tensor:
        name = f"mtp.{self.stages - 1}.hc_head"
        flat = streams.flatten()
        mixed = self.get(f"{name}_fn") @ flat / torch.sqrt((flat * flat).mean() + self.eps)
        gates = torch.sigmoid(mixed * self.get(f"{name}_scale") + self.get(f"{name}_base"))
        gates = gates + self.config["hc_eps"]
        return sum(gates[s] * streams[s] for s in range(streams.shape[0]))

    @torch.no_grad()
    def draft(self, features: Tensor, token: int, choose: Choose) -> StraightDraft:
        """Draft a block.

        Args:
            features: [n, targets * hidden] of positions 0..n-1, all that the target has processed.
            token: the anchor, at position n.
            choose: draws a proposal.
        """
        count = self.config["dspark_block_size"]
        ids = [token] + [self.config["dspark_noise_token_id"]] * (count - 1)
        block = [self.get("embed.weight")[i].repeat(self.config["hc_mult"], 1) for i in ids]
        for stage in range(self.stages):
            block = self.stage(stage, block, features, features.shape[0])
        name = f"mtp.{self.stages - 1}"
        tokens, logits, confidences = [], [], []
        for place, streams in enumerate(block):
            hidden = self.collapse(streams)
            before = self.get(f"{name}.markov_head.markov_w1.weight")[token]
            row = self.get("head.weight") @ self.rms(hidden, self.get(f"{name}.norm.weight"))
            row = row + self.get(f"{name}.markov_head.markov_w2.weight") @ before
            score = self.get(f"{name}.confidence_head.proj.weight")[0] @ torch.cat((hidden, before))
            token = choose(place, row)
            tokens.append(token)
            logits.append(row)
            confidences.append(float(torch.sigmoid(score)))
        return StraightDraft(tokens, torch.stack(logits), confidences)
