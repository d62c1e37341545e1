"""Judges the rows that a step samples from: which proposals stay, and the token behind them.

A plain step is a verification of no proposals, so there is one path for all. Laws and draws stay on
the device; two integers a span go to the host, in one copy, and log probabilities in another where
a request asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from deskside.core import TokenLogprob
from deskside.engine.live import Live
from deskside.engine.logprobs import Ask, read
from deskside.errors import NanLogitsError
from deskside.speculate.acceptance import BlockUniforms, Verdict, accept, accept_greedy
from deskside.speculate.policy import History, Masks

__all__ = ["Answer", "Proposal", "Question", "judge"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What was drafted for a span."""

    ids: tuple[int, ...]
    """The k tokens, on the host."""
    tokens: Tensor
    """[k] int64, the same on the device."""
    laws: Tensor
    """[k, vocab] float64, what they were drawn from; not looked at by a greedy request."""

    @staticmethod
    @cache
    def none() -> "Proposal":
        """Return a proposal of no token."""
        return Proposal((), torch.empty(0, dtype=torch.int64), torch.empty(0, 0).double())


@dataclass(frozen=True, slots=True)
class Question:
    """One span that samples: who asks, what it held before, what was proposed, what may follow."""

    live: Live
    known: Sequence[int]
    """Prompt and emitted tokens."""
    proposal: Proposal
    allowed: Masks | None = None
    """For each row what a grammar allows; None is everything everywhere."""

    @property
    def rows(self) -> int:
        """Rows of logits that belong to it."""
        return self.proposal.tokens.shape[0] + 1

    @property
    def asks(self) -> bool:
        """Whether log probabilities are wanted."""
        return self.live.request.params.logprobs is not None

    def history(self, vocab: int) -> History | None:
        """Count the tokens before the first row, where the policy wants to know."""
        if not self.live.policy.needs_history:
            return None
        prompt = len(self.live.request.prompt)
        return History.of(self.known[:prompt], self.known[prompt:], vocab)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question gets: proposals that stay, the token behind them, and what was asked for."""

    accepted: int
    token: int
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of every row's token up to `token`, where the request asks."""


def judge(logits: Tensor, questions: Sequence[Question]) -> list[Answer]:
    """Judge every question by its rows.

    Args:
        logits: [rows, vocab] float32, question after question.
        questions: the spans that sample, in the order of their rows.

    Raises:
        NanLogitsError: a question's rows hold something else than numbers.
    """
    ends = accumulate(question.rows for question in questions)
    parts = [
        logits.narrow(0, end - question.rows, question.rows)
        for end, question in zip(ends, questions, strict=True)
    ]
    packed = [_answer(rows, one) for rows, one in zip(parts, questions, strict=True)]
    asks = [
        Ask(rows, one.proposal.tokens, verdict, one.live.request.params.logprobs or 0)
        for rows, one, verdict in zip(parts, questions, packed, strict=True)
        if one.asks
    ]
    verdicts = Verdict.read(torch.stack(packed))
    if any(verdict.token < 0 for verdict in verdicts):
        raise NanLogitsError("the model's output is not a number (NaN or infinite)")
    numbers = read(asks)
    return [
        Answer(v.accepted, v.token, next(numbers)[: v.accepted + 1] if one.asks else ())
        for v, one in zip(verdicts, questions, strict=True)
    ]


def _sound(logits: Tensor, verdict: Tensor) -> Tensor:
    """Return the verdict, or -1 where the logits are no numbers: known without another read."""
    # float32 numbers can't overflow a float64 sum; what is not finite, minus itself, is NaN.
    total = logits.sum(dtype=torch.float64)
    return verdict.masked_fill_((total - total).ne(0), -1)


def _answer(logits: Tensor, question: Question) -> Tensor:
    """Return accepted proposals and the next token, [2] int64; no token where logits are none.

    A greedy block is spoiled by the rows up to its token alone: what stands behind a rejection
    would not have been computed without speculation.
    """
    history = question.history(logits.shape[1])
    tokens = question.proposal.tokens
    live = question.live
    if live.policy.greedy:
        return accept_greedy(live.policy.best(logits, tokens, history, question.allowed), tokens)
    laws = live.policy.laws(logits, tokens, history, question.allowed)
    uniforms = BlockUniforms.of(
        live.seed, live.request.choice, len(question.known), tokens.shape[0]
    )
    drafted = question.proposal.laws if tokens.shape[0] else laws[:0]
    return _sound(logits, accept(laws, drafted, tokens, uniforms))
