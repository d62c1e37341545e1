"""Turn spans into one forward's inputs: pure index arithmetic on the host.

All numbers follow from span positions, page tables and ring slots. Nothing here reads a device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deskside.batch import Batch, Emissions, Kinds
from deskside.core import SequenceId, Span
from deskside.layout.kv import MOST_PROPOSALS, carry_rows, entries_per_page, pages_for
from deskside.spec import ModelSpec
from deskside.state.pages import PageTable
from deskside.state.rings import Rings, Staged

__all__ = ["BatchBuilder", "bucket"]

Ints = NDArray[np.int64]
Places = NDArray[np.int32]

FRAMES = 64
"""Frames of batches that are kept; a step usually has the shape of one not long before it."""


def bucket(count: int) -> int:
    """Round up to 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: two sizes an octave."""
    size = 1
    while size < count:
        if size >= 2 and size * 3 // 2 >= count:
            return size * 3 // 2
        size *= 2
    return size


class _Shape(NamedTuple):
    """What a span adds to the frame of a batch; the same step after step while nothing joins."""

    rows: int
    certain: int
    samples: bool
    generated: bool
    borders: tuple[int, ...]
    """Rows before page borders that are staged besides the last rows."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """What follows from the shapes of a batch's spans alone, wherever they stand."""

    firsts: tuple[int, ...]
    """The row of the batch that each span begins with."""
    span: Tensor
    kinds: Kinds
    stage: Mapping[int, Tensor]
    sampled: Tensor
    """[n] int64, rows that are sampled from."""


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
        self._wheels = {n: np.arange(2 * n, dtype=np.int32) % n for n in self._lengths}
        self._frame = lru_cache(FRAMES)(self._frame_of)

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
        frame = self._frame(self._shapes(spans, prompts))
        rows = [_Rows(*part) for part in zip(spans, range(len(spans)), frame.firsts, strict=True)]
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        longest = max(span.end for span in spans)
        behind = positions + 1
        return Batch(
            ids=_long(ids),
            positions=torch.from_numpy(positions),
            span=frame.span,
            kinds=frame.kinds,
            slots=_long([self._rings.slot(span.sequence) for span in spans]),
            window_index=torch.from_numpy(self._window_index(rows)),
            page_table=torch.from_numpy(self._page_table(spans, pages_for(longest))),
            emissions=self._emissions(rows),
            visible={ratio: torch.from_numpy(behind // ratio) for ratio in self._ratios},
            most_visible={ratio: longest // ratio for ratio in self._ratios},
            stage=frame.stage,
            logit_rows=frame.sampled if logit_rows is None else _long(logit_rows),
        )

    def _shapes(self, spans: Sequence[Span], prompts: Sequence[int] | None) -> tuple[_Shape, ...]:
        generated = [self._exact] * len(spans)
        if prompts is not None and not self._exact and not self._floats:
            generated = [s.start >= prompt for s, prompt in zip(spans, prompts, strict=True)]
        return tuple(
            _Shape(span.rows, span.certain, span.samples, own, self._borders(span))
            for span, own in zip(spans, generated, strict=True)
        )

    def _borders(self, span: Span) -> tuple[int, ...]:
        borders = self._rings.staged(span.sequence).borders
        return tuple(b - span.start for b in borders if b < span.end - MOST_PROPOSALS)

    def _frame_of(self, shapes: tuple[_Shape, ...]) -> _Frame:
        counts = [shape.rows for shape in shapes]
        ends = list(accumulate(counts))
        firsts = tuple(end - count for end, count in zip(ends, counts, strict=True))
        generated = np.array([shape.generated for shape in shapes])
        sampled: list[int] = []
        for shape, first, end in zip(shapes, firsts, ends, strict=True):
            if shape.samples:
                sampled += range(first + shape.certain - 1, end)
        return _Frame(
            firsts,
            torch.from_numpy(np.arange(len(shapes)).repeat(counts)),
            Kinds.of(generated.repeat(counts)),
            {length: torch.from_numpy(_stage(shapes, firsts, length)) for length in self._lengths},
            _long(sampled),
        )

    def _window_index(self, rows: Sequence[_Rows]) -> Places:
        """A row's keys are those of the row before it, moved on by one."""
        window = self._spec.window
        index = np.empty((rows[-1].first + rows[-1].span.rows, window), dtype=np.int32)
        for part in rows:
            count = part.span.rows
            keys = self._places(part, part.span.start + 1 - window, window, len(rows))
            moved: Places = np.ndarray((count, window), np.int32, keys, strides=2 * keys.strides)
            index[part.first : part.first + count] = moved
        return index

    def _page_table(self, spans: Sequence[Span], most: int) -> Ints:
        width, scratch = bucket(most), [self._pages.pages]
        tables = (self._pages.table(span.sequence) for span in spans)
        return np.array([pages + scratch * (width - len(pages)) for pages in tables])

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
            first = part.span.start // ratio
            entries = np.arange(first, part.span.end // ratio)
            places = self._places(part, (first + 1) * ratio - length, length, spans)
            sources.append(places[(entries - first)[:, None] * ratio + np.arange(length)])
            table = np.array(self._pages.table(part.span.sequence))
            targets.append(table[entries // per_page] * per_page + entries % per_page)
            positions.append(entries * ratio)
        source = np.concatenate(sources).astype(np.int64)
        return Emissions(
            source=torch.from_numpy(source.clip(min=0)),
            absent=torch.from_numpy(source < 0),
            target=torch.from_numpy(np.concatenate(targets)),
            positions=torch.from_numpy(np.concatenate(positions)),
        )

    def _places(self, part: _Rows, begin: int, length: int, spans: int) -> Places:
        """Where the rows from position `begin` to the span's end stand; -1 before the first token.

        History, of which less than `length` rows are asked for, stands in the spans' rings of that
        length; the batch's own rows stand behind all rings.
        """
        span = part.span
        history = span.start - begin
        assert 0 <= history < length
        at = begin % length
        own = spans * length + part.first
        places = np.empty(span.end - begin, dtype=np.int32)
        np.add(self._wheels[length][at : at + history], part.index * length, out=places[:history])
        places[: max(0, -begin)] = -1
        places[history:] = np.arange(own, own + span.rows)
        return places


def _long(numbers: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.int64))


def _stage(shapes: Sequence[_Shape], firsts: Sequence[int], length: int) -> Ints:
    parts = []
    for shape, first in zip(shapes, firsts, strict=True):
        staged = Staged(Span(SequenceId(0), 0, shape.rows), shape.borders, {})
        parts += [np.arange(first + rows.start, first + rows.stop) for rows in staged.rows(length)]
    return np.concatenate(parts)
