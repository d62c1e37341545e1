"""From logits to the law of a token: what a request asks for, applied to target and drafter alike.

A row's logits pass these steps in this order; neutral values skip a step.

1. repetition penalty r, over tokens of prompt and output: l / r where l > 0, else l * r;
2. frequency penalty f and presence penalty s, over output tokens (OpenAI's formula):
   l - f * count - s * [count > 0];
3. logit bias: l + b, after the penalties, so that they never rescale it;
4. while fewer than `min_tokens` tokens were emitted: end and stop tokens get no mass;
5. a grammar: tokens that it does not allow here get no mass. Where it allows none but those that
   step 4 holds back, it wins;
6. temperature; 0 puts all mass on the highest logit, the lower token of equals;
7. min-p: tokens below min_p times the likeliest token's probability get no mass;
8. top-k, then top-p, as in `ops.sample`.

Row r of a verification stands behind proposals 0..r-1, and counts them as output.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from deskside.core import SamplingParams
from deskside.ops.sample import best, greedy, target_distribution

__all__ = ["History", "Masks", "Policy"]

Masks: TypeAlias = Sequence[Tensor | None]
"""For each row [vocab] bool, the tokens that a grammar allows there; None is all of them."""


@dataclass(frozen=True, slots=True)
class History:
    """What a sequence held before a step, as penalties and `min_tokens` see it."""

    output: Tensor
    """[vocab] int64, how often each token was emitted."""
    seen: Tensor
    """[vocab] bool, whether a token stands in prompt or output."""
    emitted: int
    """Tokens emitted."""

    @staticmethod
    def of(prompt: Sequence[int], output: Sequence[int], vocab: int) -> "History":
        """Count the tokens of a sequence."""
        counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=vocab)
        seen = counts > 0
        seen[torch.tensor(prompt, dtype=torch.int64)] = True
        return History(counts, seen, len(output))

    def after(self, proposals: Tensor) -> "History":
        """Return the history with proposals [n] int64 emitted behind it."""
        if proposals.shape[0] == 0:
            return self
        counts = self.output + torch.bincount(proposals, minlength=self.output.shape[0])
        return History(counts, self.seen | (counts > 0), self.emitted + proposals.shape[0])


class Policy:
    """The law of one request's tokens."""

    def __init__(
        self,
        params: SamplingParams,
        ends: Collection[int] = (),
        choose: Callable[[Tensor], Tensor] = best,
    ) -> None:
        """Prepare a request's policy.

        Args:
            params: what the request asks for.
            ends: tokens that end it, kept away until `min_tokens` were emitted.
            choose: the body of `ops.sample.best`.
        """
        self._choose = choose
        self._params = params
        self._ends = torch.tensor(sorted(ends), dtype=torch.int64)
        self._biased = torch.tensor([token for token, _ in params.logit_bias], dtype=torch.int64)
        self._bias = torch.tensor([bias for _, bias in params.logit_bias], dtype=torch.float32)
        self._penalized = bool(params.presence_penalty or params.frequency_penalty)

    @property
    def greedy(self) -> bool:
        """Whether all mass goes to one token."""
        return self._params.temperature == 0

    @property
    def needs_history(self) -> bool:
        """Whether the law depends on tokens other than through the logits."""
        params = self._params
        return self._penalized or params.repetition_penalty != 1 or params.min_tokens > 0

    def adjust(
        self, logits: Tensor, history: History | None = None, allowed: Tensor | None = None
    ) -> Tensor:
        """Apply steps 1 to 5 to the logits of one row.

        Args:
            logits: [vocab] float32.
            history: of everything before the row; wanted where `needs_history`.
            allowed: [vocab] bool, the tokens that a grammar allows; None is all of them.

        Returns:
            [vocab] float32; the argument itself where nothing applies.
        """
        params = self._params
        if self.needs_history:
            assert history is not None, "this policy depends on the tokens before"
            if params.repetition_penalty != 1:
                by = params.repetition_penalty
                penalized = torch.where(logits > 0, logits / by, logits * by)
                logits = torch.where(history.seen, penalized, logits)
            if self._penalized:
                present = (history.output > 0).float()
                logits = logits - params.frequency_penalty * history.output.float()
                logits = logits - params.presence_penalty * present
        if params.logit_bias:
            logits = logits.index_add(0, self._biased, self._bias)
        if history is not None and history.emitted < params.min_tokens:
            going_on = logits.index_fill(0, self._ends, -torch.inf)
            if allowed is None:
                return going_on
            can = allowed & (going_on > -torch.inf)
            return torch.where(torch.where(can.any(), can, allowed), logits, -torch.inf)
        return logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)

    def law(
        self, logits: Tensor, history: History | None = None, allowed: Tensor | None = None
    ) -> Tensor:
        """Return the distribution [vocab] float64 of the token after one row.

        Args:
            logits: [vocab] float32, of the target or of the drafter.
            history: of everything before the row; wanted where `needs_history`.
            allowed: [vocab] bool, the tokens that a grammar allows; None is all of them.
        """
        params = self._params
        logits = self.adjust(logits, history, allowed)
        if self.greedy:
            best = greedy(logits.unsqueeze(0))
            return torch.zeros(logits.shape[0], dtype=torch.float64).index_fill_(0, best, 1.0)
        if params.min_p:
            least = logits.double().amax() + params.temperature * math.log(params.min_p)
            logits = logits.masked_fill(logits.double() < least, -torch.inf)
        return target_distribution(logits, params.temperature, params.top_k, params.top_p)

    def laws(
        self,
        logits: Tensor,
        proposals: Tensor,
        history: History | None = None,
        allowed: Masks | None = None,
    ) -> Tensor:
        """Return the distributions of consecutive rows, each behind the proposals before it.

        Args:
            logits: [rows, vocab] float32.
            proposals: [rows - 1 or more] int64; row r stands behind the first r of them.
            history: of everything before the first row; wanted where `needs_history`.
            allowed: for each row what a grammar allows there; None is everything everywhere.

        Returns:
            [rows, vocab] float64.
        """
        return torch.stack([self.law(*row) for row in _rows(logits, proposals, history, allowed)])

    def best(
        self,
        logits: Tensor,
        proposals: Tensor,
        history: History | None = None,
        allowed: Masks | None = None,
    ) -> Tensor:
        """Return the argmax tokens [rows] int64 of consecutive rows; arguments as `laws` takes.

        A row of logits that are not all numbers has -1.
        """
        chosen = self._choose(logits)
        if not self.needs_history and not self._params.logit_bias and allowed is None:
            return chosen
        rows = [self.adjust(*row) for row in _rows(logits, proposals, history, allowed)]
        return torch.where(chosen < 0, chosen, greedy(torch.stack(rows)))


def _rows(
    logits: Tensor, proposals: Tensor, history: History | None, allowed: Masks | None
) -> Iterator[tuple[Tensor, History | None, Tensor | None]]:
    """Yield consecutive rows, each with the history and the mask that it stands behind."""
    masks = allowed or (None,) * logits.shape[0]
    for r, (row, mask) in enumerate(zip(logits, masks, strict=True)):
        yield row, history and history.after(proposals[:r]), mask
