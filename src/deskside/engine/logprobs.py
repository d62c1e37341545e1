"""Log probabilities of emitted tokens, for requests that ask.

They are those of the target itself, at temperature 1 and before penalties, bias and the cuts of
top-k, top-p and min-p, by the row that each token follows. A row's logits do not depend on what
else is in the forward, so the numbers are the same with speculation and without. They stay on the
device until the verdicts are read, and go to the host in one copy for all requests of a step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.core import TokenLogprob

__all__ = ["Ask", "pack_row", "parse", "read"]


@dataclass(frozen=True, slots=True)
class Ask:
    """The rows of one request: their logits, its proposals and the verdict on them."""

    logits: Tensor
    """[k + 1, vocab] float32."""
    proposals: Tensor
    """[k] int64."""
    verdict: Tensor
    """[2] int64, on the device: accepted proposals, and the token behind them."""
    top: int
    """How many of the likeliest tokens are wanted beside each."""

    def packed(self) -> Tensor:
        """Return [k + 1, 1 + 2 * top] float64: of the token, then pairs of token and number.

        Rows behind the last emitted token say nothing.
        """
        last = torch.arange(self.logits.shape[0]) == self.verdict[0]
        proposed = torch.cat((self.proposals, self.verdict[1:]))
        tokens = torch.where(last, self.verdict[1], proposed)
        # One row at a time: a reduction may round otherwise when it sees more rows.
        rows = [pack_row(*part, self.top) for part in zip(self.logits, tokens, strict=True)]
        return torch.stack(rows)


def pack_row(logits: Tensor, token: Tensor, top: int) -> Tensor:
    """Return [1 + 2 * top] float64 of one row [vocab]: of the token, then token and number."""
    numbers = torch.log_softmax(logits.double(), 0)
    own = numbers.gather(0, token.view(1))
    if not top:
        return own
    likeliest, ids = torch.sort(numbers, descending=True, stable=True)
    best = torch.stack((ids[:top].double(), likeliest[:top]), dim=1)
    return torch.cat((own, best.flatten()))


def read(asks: Sequence[Ask]) -> Iterator[tuple[TokenLogprob, ...]]:
    """Copy the answers to all to the host; for each a tuple of k + 1."""
    packed = [ask.packed() for ask in asks]
    flat = iter(torch.cat([one.flatten() for one in packed]).tolist() if packed else ())
    for one in packed:
        rows, width = one.shape
        yield tuple(parse([next(flat) for _ in range(width)]) for _ in range(rows))


def parse(row: Sequence[float]) -> TokenLogprob:
    """Return what a packed row says."""
    pairs = zip(row[1::2], row[2::2], strict=True)
    return TokenLogprob(row[0], tuple((int(token), number) for token, number in pairs))
