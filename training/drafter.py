"""The DSpark drafter in plain torch, for many anchors of whole sequences at once.

Anchors are drawn in equal numbers from every block of one window, so that the context of a block's
anchors lies in two blocks of rows and attention needs no gathering. Features, embedding, head and
target distributions come from the frozen trunk; parameters carry the checkpoint's names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.model import (
    NEG,
    Layer,
    Linear,
    Mode,
    Norm,
    Trunk,
    collapse,
    head_logits,
    join_streams,
    joint_softmax,
    rms,
    rotate,
    split_streams,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from training.shape import Shape


@dataclass(frozen=True)
class DraftShape:
    """What config.json says about the drafter beside the trunk's sizes."""

    block: int = 5
    rank: int = 32
    noise: int = 2047
    targets: tuple[int, ...] = (2, 3, 4)
    stages: int = 3

    def config(self, trunk: dict[str, object]) -> dict[str, object]:
        """The trunk's config.json with the drafter's fields."""
        ratios = trunk["compress_ratios"]
        assert isinstance(ratios, list)
        layers = trunk["num_hidden_layers"]
        assert isinstance(layers, int)
        return trunk | {
            "compress_ratios": [*ratios[:layers], *[0] * self.stages],
            "num_nextn_predict_layers": 1,
            "dspark_block_size": self.block,
            "dspark_markov_rank": self.rank,
            "dspark_noise_token_id": self.noise,
            "dspark_target_layer_ids": list(self.targets),
        }

    @classmethod
    def of(cls, config: dict[str, object]) -> DraftShape:
        """From a config.json that has the fields."""
        ratios, layers = config["compress_ratios"], config["num_hidden_layers"]
        targets = config["dspark_target_layer_ids"]
        assert isinstance(ratios, list)
        assert isinstance(layers, int)
        assert isinstance(targets, list)
        return cls(
            int(str(config["dspark_block_size"])),
            int(str(config["dspark_markov_rank"])),
            int(str(config["dspark_noise_token_id"])),
            tuple(targets),
            len(ratios) - layers,
        )


class Markov(nn.Module):
    """The table of the token before and the projection back to the vocabulary."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.markov_w1, self.markov_w2 = Linear(vocab, rank), Linear(vocab, rank)

    def forward(self, before: Tensor) -> tuple[Tensor, Tensor]:
        """Embedding of the token before each row, and what it adds to the logits."""
        found = F.embedding(before, self.markov_w1.weight)
        return found, F.linear(found, self.markov_w2.weight).float()


class Confidence(nn.Module):
    """One logit from the collapsed hidden state and the embedding of the token before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = Linear(1, width)

    def forward(self, hidden: Tensor, found: Tensor) -> Tensor:
        joined = torch.cat((hidden, found.to(hidden.dtype)), -1).float()
        return (joined * self.proj.weight[0].float()).sum(-1)


@dataclass(frozen=True)
class Places:
    """Where the rows of all blocks stand: angles, and the context each anchor sees."""

    cos: Tensor
    sin: Tensor
    context_cos: Tensor
    context_sin: Tensor
    visible: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        """As plain tensors, for the compiler."""
        return self.cos, self.sin, self.context_cos, self.context_sin, self.visible


class Stage(Layer):
    """A layer without compression whose keys are context rows and the block itself."""

    def __init__(self, shape: Shape, draft: DraftShape, stage: int) -> None:
        super().__init__(replace(shape, compress_ratios=(0,), num_hash_layers=0), 0)
        self.block = draft.block
        hidden, streams = shape.hidden_size, shape.hc_mult
        if stage == 0:
            self.main_proj = Linear(hidden, len(draft.targets) * hidden)
            self.main_norm = Norm(hidden)
        if stage == draft.stages - 1:
            self.norm = Norm(hidden)
            self.hc_head_fn = nn.Parameter(torch.empty(streams, streams * hidden))
            self.hc_head_base = nn.Parameter(torch.zeros(streams))
            self.hc_head_scale = nn.Parameter(torch.ones(1))
            self.markov_head = Markov(shape.vocab_size, draft.rank)
            self.confidence_head = Confidence(hidden + draft.rank)

    def attend(self, x: Tensor, main: Tensor, places: tuple[Tensor, ...], mode: Mode) -> Tensor:
        """Attention of all block rows [batch, anchors * block, hidden]."""
        cos, sin, context_cos, context_sin, visible = places
        attn, shape, eps = self.attn, self.shape, self.shape.rms_norm_eps
        batch, rows, _ = x.shape
        heads, d, size = shape.num_attention_heads, shape.head_dim, shape.sliding_window
        low = rms(attn.wq_a(x), attn.q_norm.weight, eps)
        query = attn.wq_b(low).view(batch, rows, heads, d)
        query = rotate(rms(query, None, eps), cos[:, :, None], sin[:, :, None]) * d**-0.5
        own = attn.cached(rotate(rms(attn.wkv(x), attn.kv_norm.weight, eps), cos, sin), mode)
        context = rms(attn.wkv(main), attn.kv_norm.weight, eps)
        context = attn.cached(rotate(context, context_cos, context_sin), mode)
        blocks = context.shape[1] // size
        pad = F.pad(context, (0, 0, size, 0)).view(batch, blocks + 1, size, d)
        keys = torch.cat((pad[:, :-1], pad[:, 1:]), 2).flatten(0, 1)
        far = torch.bmm(query.view(batch * blocks, -1, d), keys.mT).float()
        far = far.view(*visible.shape[:3], self.block * heads, 2 * size)
        far = far.masked_fill(~visible[:, :, :, None, :], NEG).view(batch, rows, heads, -1)
        own = own.view(-1, self.block, d)
        near = torch.bmm(query.view(-1, self.block * heads, d), own.mT).float()
        near = near.view(batch, rows, heads, self.block)
        sink = attn.attn_sink.float()[:, None]
        near, far = joint_softmax(near, far, sink)
        out = torch.bmm(far.to(x.dtype).view(batch * blocks, -1, 2 * size), keys)
        more = torch.bmm(near.to(x.dtype).view(-1, self.block * heads, self.block), own)
        out = out.view(batch, rows, heads, d) + more.view(batch, rows, heads, d)
        return attn.project(rotate(out, cos[:, :, None], -sin[:, :, None]))

    def run(
        self, x: Tensor, main: Tensor, places: tuple[Tensor, ...], mode: Mode
    ) -> tuple[Tensor, Tensor]:
        """The streams after this stage, and the load of its experts."""
        eps = self.shape.rms_norm_eps
        y, post, comb = split_streams(
            x, self.hc_attn_fn, self.hc_attn_base, self.hc_attn_scale, self.shape
        )
        y = self.attend(rms(y, self.attn_norm.weight, eps), main, places, mode)
        x = join_streams(x, y, post, comb)
        y, post, comb = split_streams(
            x, self.hc_ffn_fn, self.hc_ffn_base, self.hc_ffn_scale, self.shape
        )
        y, load = self.ffn(rms(y, self.ffn_norm.weight, eps), x[..., 0, 0])
        return join_streams(x, y, post, comb), load


def call_stage(
    stage: Stage, x: Tensor, main: Tensor, places: tuple[Tensor, ...], mode: Mode
) -> tuple[Tensor, Tensor]:
    """One stage; a function of its own so that it can be compiled by itself."""
    return stage.run(x, main, places, mode)


@dataclass(frozen=True)
class Rows:
    """What each drafted row gives, [batch, anchors, block]."""

    loss: Tensor  # cross entropy against the target's distribution
    accept: Tensor  # 1 - total variation: the chance of acceptance at temperature 1
    match: Tensor  # whether the argmax is the target's
    confidence: Tensor  # raw logit
    share: Tensor  # min(1, q/p) of the text's own next token


def row_scores(
    x: Tensor, target: Tensor, before: Tensor, after: Tensor, last: Stage, trunk: Trunk
) -> tuple[Tensor, ...]:
    """From the streams of block rows and of the trunk's rows at the same places to `Rows`."""
    shape = trunk.shape
    hidden = collapse(x, last.hc_head_fn, last.hc_head_base, last.hc_head_scale, shape)
    found, more = last.markov_head(before)
    logits = trunk.head(rms(hidden, last.norm.weight, shape.rms_norm_eps)).float() + more
    wanted = head_logits(target, trunk).detach()
    log_p, log_q = torch.log_softmax(wanted, -1), torch.log_softmax(logits, -1)
    p, q = log_p.exp(), log_q.exp()
    loss = -(p * log_q).sum(-1)
    accept = 1 - 0.5 * (p - q).abs().sum(-1)
    match = logits.detach().argmax(-1) == wanted.argmax(-1)
    confidence = last.confidence_head(hidden.detach(), found.detach())
    ratio = (log_q.detach() - log_p).gather(-1, after[..., None])[..., 0]
    return loss, accept, match, confidence, ratio.clamp(max=0).exp()


class Drafter(nn.Module):
    """All stages; the trunk is passed in and never trained."""

    def __init__(self, shape: Shape, draft: DraftShape) -> None:
        super().__init__()
        self.shape, self.draft = shape, draft
        self.mtp = nn.ModuleList(Stage(shape, draft, i) for i in range(draft.stages))
        self.call_stage: Callable[..., tuple[Tensor, Tensor]] = call_stage
        self.call_scores: Callable[..., tuple[Tensor, ...]] = row_scores

    def compile_parts(self) -> None:
        """Hands a stage, and the scores, to the compiler."""
        self.call_stage = torch.compile(call_stage, dynamic=False)
        self.call_scores = torch.compile(row_scores, dynamic=False)

    def places(self, ids: Tensor, anchors: Tensor, trunk: Trunk) -> Places:
        """Angles of all rows, and which of the two blocks' rows each anchor attends to."""
        size, batch = self.shape.sliding_window, ids.shape[0]
        cos, sin = trunk.angles(ids.shape[1] + self.draft.block, False, ids.device)
        steps = torch.arange(self.draft.block, device=ids.device)
        position = (anchors.flatten(1)[..., None] + steps).flatten(1)
        blocks = ids.shape[1] // size
        first = torch.arange(blocks, device=ids.device)[:, None] * size - size
        row = first + torch.arange(2 * size, device=ids.device)
        document = (ids == 0).cumsum(1)
        padded = F.pad(document, (size, 0), value=-1).view(batch, blocks + 1, size)
        theirs = torch.cat((padded[:, :-1], padded[:, 1:]), 2)
        mine = document.gather(1, anchors.flatten(1)).view(anchors.shape)
        near = (row[:, None] < anchors[..., None]) & (row[:, None] >= anchors[..., None] - size)
        visible = near & (theirs[:, :, None] == mine[..., None])
        length = ids.shape[1]
        return Places(cos[position], sin[position], cos[:length], sin[:length], visible)

    def streams(
        self, ids: Tensor, features: Tensor, anchors: Tensor, trunk: Trunk, mode: Mode
    ) -> tuple[Tensor, list[Tensor]]:
        """The residual of every block row after the last stage, and the experts' loads."""
        first, shape = self.mtp[0], self.shape
        block = ids.gather(1, anchors.flatten(1))[..., None]
        block = F.pad(block, (0, self.draft.block - 1), value=self.draft.noise).flatten(1)
        x = F.embedding(block, trunk.embed.weight).to(features.dtype)
        x = x[:, :, None].expand(-1, -1, shape.hc_mult, -1).contiguous()
        main = rms(first.main_proj(features), first.main_norm.weight, shape.rms_norm_eps)
        places, loads = self.places(ids, anchors, trunk).parts(), []
        for stage in self.mtp:
            x, load = self.call_stage(stage, x, main, places, mode)
            loads.append(load)
        return x, loads

    def forward(
        self,
        ids: Tensor,
        anchors: Tensor,
        features: Tensor,
        last: Tensor,
        trunk: Trunk,
        mode: Mode,
    ) -> tuple[Rows, Tensor, list[Tensor]]:
        """Scores of every row of every anchor, which of them count, and the experts' loads.

        `ids` has one token more than `features` and `last`, the trunk's own rows.
        """
        length = features.shape[1]
        x, loads = self.streams(ids[:, :length], features, anchors, trunk, mode)
        steps = torch.arange(self.draft.block, device=ids.device)
        row = anchors.flatten(1)[..., None] + steps
        document = (ids == 0).cumsum(1)
        inside = row < length
        row = row.clamp(max=length - 1).flatten(1)
        mine = document.gather(1, anchors.flatten(1))[..., None]
        counted = inside & (document.gather(1, row + 1).view(inside.shape) == mine)
        places = row[..., None, None].expand(-1, -1, *last.shape[2:])
        scores = self.call_scores(
            x, last.gather(1, places), ids.gather(1, row), ids.gather(1, row + 1), self.mtp[-1],
            trunk,
        )  # fmt: skip
        return Rows(*(value.view(inside.shape) for value in scores)), counted, loads


def draw_anchors(batch: int, length: int, window: int, count: int, device: torch.device) -> Tensor:
    """`count` different positions of each block of one window, [batch, blocks, count]."""
    blocks = length // window
    order = torch.rand(batch, blocks, window, device=device).topk(count, -1).indices
    return order + torch.arange(blocks, device=device)[:, None] * window


def every_anchor(batch: int, length: int, window: int, device: torch.device) -> Tensor:
    """All positions as anchors."""
    return torch.arange(length, device=device).view(1, -1, window).expand(batch, -1, -1)


def initialise(drafter: Drafter, trunk: Trunk, sources: tuple[int, ...], seed: int) -> None:
    """Stages start as copies of trunk layers; what the trunk lacks starts small or at nothing."""
    generator = torch.Generator().manual_seed(seed)
    first, last = drafter.mtp[0], drafter.mtp[-1]
    hidden = drafter.shape.hidden_size
    with torch.no_grad():
        for stage, source in zip(drafter.mtp, sources, strict=True):
            state = trunk.layers[source].state_dict()
            wanted = stage.state_dict()
            copied = {name: value for name, value in state.items() if name in wanted}
            stage.load_state_dict(copied, strict=False)
        size = first.main_proj.weight.shape
        noise = torch.randn(size, generator=generator) * (0.3 * size[1] ** -0.5)
        first.main_proj.weight.copy_(noise)
        first.main_proj.weight[:, -hidden:] += torch.eye(hidden)
        last.norm.weight.copy_(trunk.norm.weight)
        last.hc_head_fn.copy_(trunk.hc_head_fn)
        last.hc_head_base.copy_(trunk.hc_head_base)
        last.hc_head_scale.copy_(trunk.hc_head_scale)
        table = last.markov_head.markov_w1.weight
        table.copy_(torch.randn(table.shape, generator=generator))
        last.markov_head.markov_w2.weight.zero_()
        last.confidence_head.proj.weight.zero_()
