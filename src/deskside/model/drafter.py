"""The checkpoint's own drafter: three layers that guess a block of tokens from the target's work.

Its context rows come from the target's features of processed positions; a draft runs one block of
the anchor and noise rows through the stages at once, then a low-rank Markov head ties each row to
the token drawn before it, and a confidence head says how likely each guess is to stay. Attribute
names follow the checkpoint (`mtp.0` ... of the published layout).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.batch import Batch
from deskside.distributed.group import ALONE, Group
from deskside.experts.service import ExpertService
from deskside.model.block import Block, Head
from deskside.model.draft_inputs import Anchor, draft_batch
from deskside.model.parallel import Ranks
from deskside.model.parts import Parts
from deskside.model.rotary import Rotary
from deskside.ops.linear import Bundle, Weight
from deskside.ops.opset import OpSet
from deskside.spec import ModelSpec
from deskside.speculate.proposal import Proposer
from deskside.state.context import DraftContext
from deskside.state.kv import LayerState

__all__ = ["Drafter", "Drafts", "Features"]


class Features:
    """Watches a forward and keeps what the drafter reads of it.

    That is the mean over the streams at the output of the configured layers, side by side in the
    configured order, for the rows that the context's staging takes.
    """

    def __init__(self, layers: Sequence[int], rows: Tensor) -> None:
        """Watch `layers`, for batch rows [n] int64."""
        self._layers = tuple(layers)
        self._rows = rows
        self._means: dict[int, Tensor] = {}

    def __call__(self, layer: int, streams: Tensor) -> None:
        """Look at the output streams [rows, S, hidden] of a layer."""
        if layer in self._layers:
            # One stream after the other: a sum whose order no number of rows can change.
            first, *others = streams.index_select(0, self._rows).unbind(1)
            self._means[layer] = sum(others, start=first) / streams.shape[1]

    def joined(self) -> Tensor:
        """Return [n, targets * hidden] float32, after the forward."""
        return torch.cat([self._means[layer] for layer in self._layers], dim=1)


@dataclass(frozen=True, slots=True)
class Drafts:
    """What was drafted for S sequences, on the device; only the leader has laws and logits."""

    tokens: Tensor
    """[S, block] int64."""
    confidences: Tensor
    """[S, block] float32: that a proposal is accepted, given that those before it were."""
    logits: Tensor
    """[S, block, vocab] float32, before any policy."""
    laws: tuple[Tensor, ...]
    """[block, vocab] float64 of each sequence; [0, vocab] at temperature 0."""

    def read(self) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Copy tokens and confidences of every sequence to the host, in one record."""
        block = self.tokens.shape[1]
        packed = torch.cat((self.tokens.double(), self.confidences.double()), dim=1)
        return [
            (tuple(int(token) for token in row[:block]), tuple(row[block:]))
            for row in packed.tolist()
        ]


class MarkovHead:
    """Weights `markov_w1`, `markov_w2`: what the token before adds to a row's logits."""

    def __init__(self, parts: Parts) -> None:
        self.markov_w1 = parts.tensor("markov_w1.weight")
        self.markov_w2 = parts.matrix("markov_w2.weight")


class Drafter:
    """Three stages between the target's features and the target's own head."""

    def __init__(
        self,
        weights: Mapping[str, Weight],
        spec: ModelSpec,
        ops: OpSet,
        temperatures: Sequence[float] = (),
        experts: ExpertService | None = None,
        group: Group = ALONE,
    ) -> None:
        """Put the drafter together.

        Args:
            weights: of the whole checkpoint; embedding and head are the target's.
            spec: with a drafter.
            ops: operations.
            temperatures: of the confidences, one for each place of the block; none leaves them raw.
            experts: the target's service of routed experts; without one they run in place.
            group: the ranks that share the weights.
        """
        assert spec.drafter is not None
        self._ranks = Ranks(group)
        experts = experts or ExpertService(ops, group=group)
        parts = Parts(weights, spec, ops, experts, self._ranks)
        stages = [parts.below(f"mtp.{stage}") for stage in range(spec.drafter.stages)]
        first, last = stages[0], stages[-1]
        self.embed = parts.tensor("embed.weight")
        self.head = parts.matrix("head.weight")
        self.mtp = [Block(stage, ratio=0, hashed=False) for stage in stages]
        self.main_proj = first.matrix("main_proj.weight")
        self.main_norm = first.tensor("main_norm.weight")
        self._context = Bundle(tuple(stage.attn.wkv for stage in self.mtp))
        self.final = Head(last)
        self.markov_head = MarkovHead(last.below("markov_head"))
        self.confidence_head = last.below("confidence_head").matrix("proj.weight")
        self._temperatures = torch.tensor(temperatures or [1.0] * spec.drafter.block)
        assert self._temperatures.shape[0] == spec.drafter.block
        self._targets = spec.drafter.target_layers
        self._block = spec.drafter.block
        self._rotary = Rotary(spec, ops)
        self._spec = spec
        self._ops = ops

    def features(self, batch: Batch) -> Features:
        """Return what is to watch the target's forward over a batch."""
        return Features(self._targets, batch.stage[self._spec.window])

    def context(self, features: Tensor, batch: Batch) -> list[Tensor]:
        """Turn the target's features into context rows.

        Args:
            features: [n, targets * hidden] float32 of the batch's staged rows.
            batch: the target's.

        Returns:
            [n, head_dim] float32 for each stage, rotated, to be staged.
        """
        table = self._rotary.rows(batch.positions[batch.stage[self._spec.window]])
        x = self._ops.linear(features, self.main_proj)
        x = self._ops.rms_norm(x, self.main_norm, self._spec.norm_eps)
        products = self._ops.linears(x, self._context)
        return [stage.attn.keys(kv, table) for stage, kv in zip(self.mtp, products, strict=True)]

    def draft(
        self, anchors: Sequence[Anchor], proposers: Sequence[Proposer], context: DraftContext
    ) -> Drafts:
        """Draft one block for each of S sequences.

        Args:
            anchors: where the sequences stand.
            proposers: how each of them draws; only the leader is asked.
            context: rows of history are only read.
        """
        batch = draft_batch(self._spec, anchors)
        hidden = self.final.collapse(self._streams(batch, context))
        base = self.final.logits(hidden, self.head).unflatten(0, (-1, self._block))
        tokens = batch.ids.view(-1, self._block)[:, :0]
        before = batch.ids.view(-1, self._block)[:, 0]
        embedded: list[Tensor] = []
        logits: list[Tensor] = []
        laws: list[list[Tensor]] = []

        def draw() -> Tensor:
            drawn = [
                one.propose(row, known)
                for one, row, known in zip(proposers, logits[-1], tokens, strict=True)
            ]
            laws.append([law for _, law in drawn])
            return torch.cat([token for token, _ in drawn])

        for place in range(self._block):
            embedded.append(self._ranks.lookup(self.markov_head.markov_w1, before))
            pull = self._ops.linear(embedded[-1], self.markov_head.markov_w2)
            logits.append(self._ranks.joined(base[:, place] + pull))
            # What follows the last place is told with the leader's choice, to all that need it.
            told = self._ranks.decided if place + 1 < self._block else self._ranks.kept
            before = told(len(anchors), draw)
            tokens = torch.cat((tokens, before.unsqueeze(1)), dim=1)
        return Drafts(
            tokens,
            self._confidences(hidden, torch.stack(embedded, dim=1)),
            torch.stack(logits, dim=1),
            tuple(torch.cat(column) for column in zip(*laws, strict=True)),
        )

    def _streams(self, batch: Batch, context: DraftContext) -> Tensor:
        """Run the blocks through all stages: [rows, S, hidden]."""
        tables = self._rotary.plain(batch)
        embedded = self._ranks.lookup(self.embed, batch.ids)
        streams = embedded.unsqueeze(1).repeat(1, self._spec.streams, 1)
        for stage, ring in zip(self.mtp, context.stages, strict=True):
            streams = stage.forward(streams, batch, tables, LayerState(ring))
        return streams

    def _confidences(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Return the confidences of all blocks.

        Args:
            hidden: [S * block, hidden] float32, before the norm.
            embedded: [S, block, rank] float32, of the token before each place.

        Returns:
            [S, block] float32.
        """
        rows = torch.cat((hidden, embedded.flatten(0, 1)), dim=1)
        logits = self._ops.linear(rows, self.confidence_head).view(-1, self._block)
        return torch.sigmoid(logits / self._temperatures)
