"""Judges the rows that a step samples from: which proposals stay, and the token behind them.

A plain step is a verification of no proposals, so there is one path for all. Laws and draws stay on
the device; two integers a span go to the host, in one copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.core import Request
from deskside.speculate.acceptance import BlockUniforms, Verdict, accept, accept_greedy
from deskside.speculate.policy import History, Policy

__all__ = ["Proposal", "Question", "judge"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What was drafted for a span: tokens [k] int64 and the laws [k, vocab] they came from.

    At temperature 0 the laws are not looked at and may be empty.
    """

    tokens: Tensor
    laws: Tensor

    @staticmethod
    def none(vocab: int) -> "Proposal":
        """Return a proposal of no token."""
        return Proposal(torch.empty(0, dtype=torch.int64), torch.empty(0, vocab).double())


@dataclass(frozen=True, slots=True)
class Question:
    """One span that samples: who asks, what it held before, and what was proposed."""

    request: Request
    seed: int
    policy: Policy
    known: Sequence[int]
    """Prompt and emitted tokens."""
    proposal: Proposal

    @property
    def rows(self) -> int:
        """Rows of logits that belong to it."""
        return self.proposal.tokens.shape[0] + 1

    def history(self, vocab: int) -> History | None:
        """Count the tokens before the first row, where the policy wants to know."""
        if not self.policy.needs_history:
            return None
        prompt = len(self.request.prompt)
        return History.of(self.known[:prompt], self.known[prompt:], vocab)


def judge(logits: Tensor, questions: Sequence[Question]) -> list[Verdict]:
    """Judge every question by its rows.

    Args:
        logits: [rows, vocab] float32, question after question.
        questions: the spans that sample, in the order of their rows.
    """
    parts = logits.split([question.rows for question in questions])
    answers = [_answer(rows, one) for rows, one in zip(parts, questions, strict=True)]
    return Verdict.read(torch.stack(answers))


def _answer(logits: Tensor, question: Question) -> Tensor:
    """Return accepted proposals and the next token, [2] int64."""
    history = question.history(logits.shape[1])
    tokens = question.proposal.tokens
    if question.policy.greedy:
        return accept_greedy(question.policy.best(logits, tokens, history), tokens)
    laws = question.policy.laws(logits, tokens, history)
    uniforms = BlockUniforms.of(
        question.seed, question.request.choice, len(question.known), tokens.shape[0]
    )
    return accept(laws, question.proposal.laws, tokens, uniforms)
