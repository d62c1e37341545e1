"""The tensors behind the cache: rings, pools of compressed entries, and their stored formats.

Allocates everything once from the model's shapes and the planned counts, and hands each layer a
view of its own part. Pools have one page more than the table: a scratch page for padded writes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.formats.rows import Float32Rows, Fp8Rows, Mxfp4Rows, RowFormat
from deskside.layout.kv import (
    SCRATCH_PAGES,
    KvFormat,
    carry_crosses,
    carry_rows,
    carry_widths,
    entries_per_page,
)
from deskside.spec import CSA_RATIO, ModelSpec
from deskside.state.rings import RingGroup

__all__ = ["KvState", "LayerState", "Pool", "Ring", "row_formats"]


@dataclass(frozen=True, slots=True)
class Ring:
    """One layer's rings and their staging, with the rows' stored format."""

    storage: Tensor
    """[slots, length, width]."""
    staging: Tensor
    """[staged rows, width]."""
    format: RowFormat

    @property
    def length(self) -> int:
        """Rows of one ring."""
        return self.storage.shape[1]

    def extend(self, rows: Tensor, slots: Tensor, stage: Tensor) -> Tensor:
        """Stage a forward's rows and return what it can read: ring rows, then its own.

        Args:
            rows: [rows, dim] float32.
            slots: [spans] int64.
            stage: [n] int64, rows to leave in staging.

        Returns:
            [spans * length + rows, dim] float32, everything as it is stored.
        """
        stored = self.format.encode(rows)
        torch.index_select(stored, 0, stage, out=self.staging[: stage.shape[0]])
        return self.format.read(self.storage, slots, stored)

    def leave(self, rows: Tensor) -> None:
        """Stage float32 rows [n, dim], all of them, and read nothing."""
        self.staging[: rows.shape[0]] = self.format.encode(rows)


@dataclass(frozen=True, slots=True)
class Pool:
    """One layer's compressed entries of all sequences, page after page."""

    storage: Tensor
    """[(pages + 1) * entries per page, width]."""
    per_page: int
    format: RowFormat

    def write(self, target: Tensor, rows: Tensor) -> None:
        """Store float32 entries [n, dim] at pool rows [n]."""
        self.storage[target] = self.format.encode(rows)

    def read(self, page_table: Tensor) -> Tensor:
        """Read all entries of the pages [spans, pages]: [spans * pages * per page, dim] float32."""
        pages = self.storage.unflatten(0, (-1, self.per_page))
        return self.format.read(pages, page_table.flatten(), self.storage[:0])

    def gather(self, page_table: Tensor, span: Tensor, entries: Tensor) -> Tensor:
        """Read chosen entries.

        Args:
            page_table: [spans, pages] int64.
            span: [rows] int64.
            entries: [rows, n] int64, negative ones read entry 0.

        Returns:
            [rows * n, dim] float32.
        """
        entries = entries.clamp(min=0)
        pages = page_table[span].gather(1, entries // self.per_page)
        places = (pages * self.per_page + entries % self.per_page).flatten()
        return self.format.read(self.storage.unsqueeze(1), places, self.storage[:0])


@dataclass(frozen=True, slots=True)
class LayerState:
    """What one layer keeps; a window layer has no compressed part."""

    window: Ring
    carry: Ring | None = None
    entries: Pool | None = None
    index_carry: Ring | None = None
    index_keys: Pool | None = None


@dataclass(frozen=True, slots=True)
class KvState:
    """The cache of all layers, and the ring groups that commits scatter into."""

    layers: tuple[LayerState, ...]
    groups: tuple[RingGroup, ...]

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        rings = sum(g.storage.nbytes + g.staging.nbytes for g in self.groups)
        pools = (p for layer in self.layers for p in (layer.entries, layer.index_keys))
        return rings + sum(pool.storage.nbytes for pool in pools if pool is not None)

    @staticmethod
    def allocate(
        spec: ModelSpec,
        kv_format: KvFormat,
        pages: int,
        slots: int,
        body: Callable[[RowFormat], RowFormat] | None = None,
        borders: int = 0,
    ) -> "KvState":
        """Allocate for `pages` pages of 128 tokens and `slots` sequences at once.

        `body` may give a faster body for a row format; the stored bytes are the same. `borders` is
        how many page borders of a step are staged besides the last rows.
        """
        return _Allocation(spec, kv_format, pages, slots, body, borders).state()


@dataclass(frozen=True, slots=True)
class _Allocation:
    """Groups of rings by what they hold, and the layers' views of them."""

    spec: ModelSpec
    kv_format: KvFormat
    pages: int
    slots: int
    body: Callable[[RowFormat], RowFormat] | None
    borders: int

    def state(self) -> KvState:
        spec = self.spec
        rows, keys = row_formats(spec, self.kv_format, self.body)
        windows = self._group(spec.layers, spec.window, rows)
        carries = {ratio: self._carries(ratio) for ratio in sorted({*spec.ratios} - {0})}
        layers = []
        for layer, ratio in enumerate(spec.ratios):
            window = Ring(windows.storage[layer], windows.staging[layer], rows)
            if ratio == 0:
                layers.append(LayerState(window))
                continue
            nth = spec.ratios[:layer].count(ratio)
            rings = [
                Ring(group.storage[nth], group.staging[nth], stored)
                for group, stored in carries[ratio]
            ]
            entries = self._pool(ratio, rows)
            if ratio == CSA_RATIO:
                layers.append(
                    LayerState(window, rings[0], entries, rings[1], self._pool(ratio, keys))
                )
            else:
                layers.append(LayerState(window, rings[0], entries))
        groups = [windows, *(group for part in carries.values() for group, _ in part)]
        return KvState(tuple(layers), tuple(groups))

    def _carries(self, ratio: int) -> list[tuple[RingGroup, RowFormat]]:
        """Rings of raw rows, value and score side by side, for each compressor of a layer."""
        layers = self.spec.ratios.count(ratio)
        plain = [Float32Rows(2 * width) for width in carry_widths(self.spec, ratio)]
        formats = [self.body(rows) if self.body else rows for rows in plain]
        length, crosses = carry_rows(ratio), carry_crosses(ratio)
        return [(self._group(layers, length, rows, crosses), rows) for rows in formats]

    def _group(
        self, layers: int, length: int, rows: RowFormat, crosses: int | None = None
    ) -> RingGroup:
        return RingGroup.allocate(
            layers,
            self.slots,
            length,
            rows.width,
            rows.dtype,
            borders=self.borders,
            crosses=crosses,
        )

    def _pool(self, ratio: int, rows: RowFormat) -> Pool:
        per_page = entries_per_page(ratio)
        shape = ((self.pages + SCRATCH_PAGES) * per_page, rows.width)
        return Pool(torch.zeros(shape, dtype=rows.dtype), per_page, rows)


def row_formats(
    spec: ModelSpec, kv_format: KvFormat, body: Callable[[RowFormat], RowFormat] | None = None
) -> tuple[RowFormat, RowFormat]:
    """Return the formats of attention rows and of index keys, in faster bodies where given."""
    rows: RowFormat = Fp8Rows(spec.nope_dim, spec.rope_dim)
    keys: RowFormat = Mxfp4Rows(spec.index_dim)
    if kv_format is KvFormat.FLOAT32:
        rows, keys = Float32Rows(spec.head_dim), Float32Rows(spec.index_dim)
    return (body(rows), body(keys)) if body else (rows, keys)
