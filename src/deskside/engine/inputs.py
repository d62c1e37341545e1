"""Turn spans into one forward's inputs: pure index arithmetic on the host.

All numbers follow from span positions, page tables and ring slots. Nothing here reads a device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deskside.batch import Batch, Emissions, Kinds
from deskside.core import Span
from deskside.layout.kv import carry_rows, entries_per_page, pages_for
from deskside.spec import ModelSpec
from deskside.state.pages import PageTable
from deskside.state.rings import Rings, staged

__all__ = ["BatchBuilder", "bucket"]

Ints = NDArray[np.int64]


def bucket(count: int) -> int:
    """Round up to 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: two sizes an octave."""
    size = 1
    while size < count:
        if size >= 2 and size * 3 // 2 >= count:
            return size * 3 // 2
        size *= 2
    return size


@dataclass(frozen=True, slots=True)
class _Rows:
    """A span and where its rows stand in the batch."""

    span: Span
    index: int
    first: int


class BatchBuilder:
    """Builds batches for one model and one set of state owners."""

    def __init__(
        self,
        spec: ModelSpec,
        pages: PageTable,
        rings: Rings,
        exact: bool = False,
        floats: bool = False,
    ) -> None:
        """Build for a model; all rows count as generated if `exact`, as prompt if `floats`."""
        self._spec = spec
        self._floats = floats
        self._exact = exact
        self._pages = pages
        self._rings = rings
        self._ratios = tuple(sorted({ratio for ratio in spec.ratios if ratio}))
        self._lengths = tuple(sorted({spec.window, *(carry_rows(r) for r in self._ratios)}))

    def build(
        self,
        spans: Sequence[Span],
        ids: Sequence[int],
        logit_rows: Sequence[int] | None = None,
        prompts: Sequence[int] | None = None,
    ) -> Batch:
        """Build the inputs of reserved spans.

        Args:
            spans: reserved, in the order of reservation.
            ids: the token ids of all rows, span after span.
            logit_rows: rows whose logits are wanted; by default those that are sampled from.
            prompts: length of each span's prompt: a span from there on is generated, also with
                the anchor alone; without it all rows are prompt rows.
        """
        rows = list(_placed(spans))
        counts = [span.rows for span in spans]
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        if logit_rows is None:
            logit_rows = _sampled(rows)
        visible = {ratio: (positions + 1) // ratio for ratio in self._ratios}
        return Batch(
            ids=_long(ids),
            positions=torch.from_numpy(positions),
            span=torch.from_numpy(np.arange(len(rows)).repeat(counts)),
            kinds=self._kinds(spans, prompts),
            slots=_long([self._rings.slot(span.sequence) for span in spans]),
            window_index=torch.from_numpy(self._window_index(rows)),
            page_table=torch.from_numpy(self._page_table(spans)),
            emissions=self._emissions(rows),
            visible={ratio: torch.from_numpy(seen) for ratio, seen in visible.items()},
            most_visible={ratio: max(s.end for s in spans) // ratio for ratio in self._ratios},
            stage={length: torch.from_numpy(_stage(rows, length)) for length in self._lengths},
            logit_rows=_long(logit_rows),
        )

    def _kinds(self, spans: Sequence[Span], prompts: Sequence[int] | None) -> Kinds:
        generated = [self._exact] * len(spans)
        if prompts is not None and not self._exact and not self._floats:
            generated = [s.start >= prompt for s, prompt in zip(spans, prompts, strict=True)]
        return Kinds.of(np.array(generated).repeat([span.rows for span in spans]))

    def _window_index(self, rows: Sequence[_Rows]) -> NDArray[np.int32]:
        """A row's keys are those of the row before it, moved on by one."""
        window = self._spec.window
        index = np.empty((rows[-1].first + rows[-1].span.rows, window), dtype=np.int32)
        for part in rows:
            span = part.span
            seen = np.arange(span.start + 1 - window, span.end)
            steps = np.arange(span.rows)[:, None] + np.arange(window)
            keys = _source(part, seen, window, len(rows)).astype(np.int32)
            keys.take(steps, out=index[part.first : part.first + span.rows], mode="clip")
        return index

    def _page_table(self, spans: Sequence[Span]) -> Ints:
        width = bucket(max(pages_for(span.end) for span in spans))
        table = np.full((len(spans), width), self._pages.pages, dtype=np.int64)
        for index, span in enumerate(spans):
            pages = self._pages.table(span.sequence)
            table[index, : len(pages)] = pages
        return table

    def _emissions(self, rows: Sequence[_Rows]) -> dict[int, Emissions]:
        found = {}
        for ratio in self._ratios:
            parts = [part for part in rows if part.span.end // ratio > part.span.start // ratio]
            if parts:
                found[ratio] = self._emission(parts, ratio, len(rows))
        return found

    def _emission(self, parts: Sequence[_Rows], ratio: int, spans: int) -> Emissions:
        length = carry_rows(ratio)
        per_page = entries_per_page(ratio)
        sources, targets, positions = [], [], []
        for part in parts:
            entries = np.arange(part.span.start // ratio, part.span.end // ratio)
            pooled = entries[:, None] * ratio + np.arange(ratio - length, ratio)
            sources.append(_source(part, pooled, length, spans))
            table = np.array(self._pages.table(part.span.sequence))
            targets.append(table[entries // per_page] * per_page + entries % per_page)
            positions.append(entries * ratio)
        source = np.concatenate(sources)
        return Emissions(
            source=torch.from_numpy(source.clip(min=0)),
            absent=torch.from_numpy(source < 0),
            target=torch.from_numpy(np.concatenate(targets)),
            positions=torch.from_numpy(np.concatenate(positions)),
        )


def _long(numbers: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.int64))


def _placed(spans: Sequence[Span]) -> Iterator[_Rows]:
    first = 0
    for index, span in enumerate(spans):
        yield _Rows(span, index, first)
        first += span.rows


def _sampled(rows: Sequence[_Rows]) -> list[int]:
    wanted: list[int] = []
    for part in rows:
        if part.span.samples:
            last = part.first + part.span.certain - 1
            wanted.extend(range(last, part.first + part.span.rows))
    return wanted


def _source(part: _Rows, positions: Ints, length: int, spans: int) -> Ints:
    """Where rows at these positions stand: in the spans' rings, then in the batch; -1 nowhere."""
    own = spans * length + part.first + positions - part.span.start
    ring = part.index * length + positions % length
    return np.where(positions >= part.span.start, own, np.where(positions < 0, -1, ring))


def _stage(rows: Sequence[_Rows], length: int) -> Ints:
    ends = [part.first + part.span.rows for part in rows]
    counts = [staged(part.span, length) for part in rows]
    return np.concatenate(
        [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
    )
