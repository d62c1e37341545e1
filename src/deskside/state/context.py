"""The drafter's context: one ring of recent rows for every stage, of what the target has computed.

It is one more group of rings as long as the windows, so that the same owner and the same staging
places serve it: every forward leaves the rows of its last positions in staging, a commit scatters
the kept ones. The bytes are `layout.kv.context_bytes` a slot, and staging as for a window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from deskside.formats.rows import RowFormat
from deskside.layout.kv import KvFormat
from deskside.spec import ModelSpec
from deskside.state.kv import Ring, row_formats
from deskside.state.rings import RingGroup

__all__ = ["DraftContext"]


@dataclass(frozen=True, slots=True)
class DraftContext:
    """The context rings of all stages, and their group for the owner of rings."""

    stages: tuple[Ring, ...]
    group: RingGroup

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self.group.storage.nbytes + self.group.staging.nbytes

    def stage(self, rows: Sequence[Tensor]) -> None:
        """Leave a forward's rows in staging: for every stage [n, head_dim] float32.

        They are the rows of `batch.stage` for the window's length, in that order.
        """
        for ring, keys in zip(self.stages, rows, strict=True):
            ring.leave(keys)

    @staticmethod
    def allocate(
        spec: ModelSpec,
        kv_format: KvFormat,
        slots: int,
        body: Callable[[RowFormat], RowFormat] | None = None,
        borders: int = 0,
    ) -> "DraftContext":
        """Allocate for `slots` sequences at once; the model must have a drafter.

        `borders` is how many page borders of a step are staged besides the last rows.
        """
        assert spec.drafter is not None
        rows, _ = row_formats(spec, kv_format, body)
        stages = spec.drafter.stages
        group = RingGroup.allocate(
            stages, slots, spec.window, rows.width, rows.dtype, borders=borders
        )
        views = zip(group.storage, group.staging, strict=True)
        return DraftContext(tuple(Ring(*view, rows) for view in views), group)
