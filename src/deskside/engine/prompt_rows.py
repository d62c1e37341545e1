"""Log probabilities of the prompt's own tokens, for requests that ask.

A row says how likely the token behind it was. So the rows of a prompt whose next token is known get
logits too, beside the rows that are sampled from. A prompt that nobody asks about costs nothing: no
row of it but the last one goes through the head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

import torch
from torch import Tensor

from deskside.core import SequenceId, Span, TokenLogprob
from deskside.engine.live import Live
from deskside.engine.logprobs import pack_row, parse
from deskside.errors import NanLogitsError

__all__ = ["PromptRows", "score"]


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Which first rows of each span are asked about; in the order of the spans."""

    spans: Sequence[Span]
    counts: Sequence[int]
    """For each span, rows that a known token of the prompt follows; 0 for most."""

    @staticmethod
    def of(spans: Sequence[Span], live: Mapping[SequenceId, Live]) -> "PromptRows":
        """Find them."""
        return PromptRows(spans, [_asked(span, live[span.sequence]) for span in spans])

    def logit_rows(self) -> list[int] | None:
        """Return the batch's rows that get logits; None means those that are sampled from."""
        if not any(self.counts):
            return None
        rows: list[int] = []
        first = 0
        for span, count in zip(self.spans, self.counts, strict=True):
            rows += range(first, first + count)
            if span.samples:
                rows += range(first + span.certain - 1, first + span.rows)
            first += span.rows
        return rows

    def split(self, logits: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Part logits [logit rows, vocab] into those that are sampled from, and each span's own.

        Where no span is asked about, none has any.
        """
        if not any(self.counts):
            return logits, [None] * len(self.spans)
        sizes = [
            size
            for span, count in zip(self.spans, self.counts, strict=True)
            for size in (count, 1 + span.proposals if span.samples else 0)
        ]
        parts = logits.split(sizes)
        return torch.cat(parts[1::2]), list(parts[::2])


def score(logits: Tensor, span: Span, live: Live) -> tuple[TokenLogprob, ...]:
    """Return the log probabilities of the tokens behind a span's first rows.

    Args:
        logits: [rows, vocab] float32 of those rows.
        span: whose rows they are.
        live: the request.

    Raises:
        NanLogitsError: a row holds something else than numbers.
    """
    if not logits.shape[0]:
        return ()
    behind = live.request.prompt[span.start + 1 : span.start + 1 + logits.shape[0]]
    top = live.request.params.logprobs or 0
    # One row at a time: a reduction may round otherwise when it sees more rows.
    packed = [
        torch.where(row.isfinite().all(), pack_row(row, torch.tensor(token), top), torch.nan)
        for row, token in zip(logits, behind, strict=True)
    ]
    found = torch.stack(packed).tolist()
    if any(isnan(row[0]) for row in found):
        raise NanLogitsError("the model's output is not a number (NaN or infinite)")
    return tuple(map(parse, found))


def _asked(span: Span, live: Live) -> int:
    if not live.request.params.prompt_logprobs:
        return 0
    return max(0, min(span.certain, len(live.request.prompt) - 1 - span.start))
