"""The whole trunk: embedding, layers, head. One forward for any mix of ragged spans."""

from collections.abc import Callable, Mapping

from torch import Tensor

from deskside.batch import Batch
from deskside.distributed.group import ALONE, Group
from deskside.experts.service import ExpertService
from deskside.model.block import Block, Head
from deskside.model.parallel import Ranks
from deskside.model.parts import Parts
from deskside.model.rotary import Rotary
from deskside.ops.linear import Weight
from deskside.ops.opset import OpSet
from deskside.spec import ModelSpec
from deskside.state.kv import KvState

__all__ = ["Flash", "Watch"]

Watch = Callable[[int, Tensor], None]


def _unwatched(layer: int, streams: Tensor) -> None:
    """Look at nothing."""


class Flash:
    """The target model. Attribute names follow the checkpoint."""

    def __init__(
        self,
        weights: Mapping[str, Weight],
        spec: ModelSpec,
        ops: OpSet,
        experts: ExpertService | None = None,
        group: Group = ALONE,
    ) -> None:
        """Put the trunk together; without a service of experts they run in place.

        With a group the weights are one rank's part, and so is what the service runs.
        """
        ranks = Ranks(group)
        parts = Parts(weights, spec, ops, experts or ExpertService(ops, group=group), ranks)
        self.embed = parts.tensor("embed.weight")
        self.layers = [
            Block(parts.below(f"layers.{i}"), ratio, i < spec.hash_layers)
            for i, ratio in enumerate(spec.ratios)
        ]
        self.final = Head(parts)
        self.head = parts.matrix("head.weight")
        self._rotary = Rotary(spec, ops)
        self._spec = spec
        self._ranks = ranks

    def forward(self, batch: Batch, state: KvState, watch: Watch = _unwatched) -> Tensor:
        """Process a batch's rows and leave their state in staging and beyond the frontiers.

        Args:
            batch: rows of reserved spans.
            state: the cache; history in it is only read.
            watch: is shown every layer's number and its output streams [rows, S, hidden]; a
                drafter takes its features there.

        Returns:
            Logits [logit rows, vocab] float32 of `batch.logit_rows`; none on a rank that does not
            lead.
        """
        tables = self._rotary.tables(batch)
        embedded = self._ranks.lookup(self.embed, batch.ids)
        streams = embedded.unsqueeze(1).repeat(1, self._spec.streams, 1)
        for number, (layer, kept) in enumerate(zip(self.layers, state.layers, strict=True)):
            streams = layer.forward(streams, batch, tables, kept)
            watch(number, streams)
        rows = streams[batch.logit_rows]
        if rows.shape[0] == 0:
            return streams.new_zeros(0, self._spec.vocab)
        return self._ranks.joined(self.final.logits(self.final.collapse(rows), self.head))
