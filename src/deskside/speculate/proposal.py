"""Draws the proposals of one request, each by the law of its own row.

A draw is keyed by the anchor's position and the proposal's place, not by the position it decides:
that position is drafted again after a rejection, and by then the width rule and the controller have
reacted to the number that was used before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.ops.sample import greedy
from deskside.speculate.acceptance import drawn
from deskside.speculate.policy import History, Policy
from deskside.uniforms import Purpose, uniform

__all__ = ["Proposer", "draft_uniforms"]


def draft_uniforms(seed: int, choice: int, anchor: int, block: int) -> Tensor:
    """Return the numbers [block] float64 of one draft.

    Args:
        seed: of the request.
        choice: which of the request's answers.
        anchor: absolute position of the anchor.
        block: proposals.
    """
    numbers = [uniform(seed, choice, anchor, Purpose.DRAFT, k) for k in range(block)]
    return torch.tensor(numbers, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Proposer:
    """How one request draws: its policy, its numbers and what it held before."""

    policy: Policy
    uniforms: Tensor | None
    """[block] float64; none where the policy is greedy."""
    history: History | None = None
    allowed: Callable[[Sequence[int]], Tensor | None] | None = None
    """Says what a grammar allows behind some proposals: [vocab] bool, or None for everything. It is
    asked with ids, so each place of a constrained block is read by the host."""

    def propose(self, logits: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the proposal that follows others of this block.

        Args:
            logits: [vocab] float32, the drafter's.
            before: [k] int64, the proposals so far.

        Returns:
            The token, [1] int64, and the law [1, vocab] float64 it was drawn from; at
            temperature 0, where nobody asks for it, the law is [0, vocab].
        """
        history = self.history and self.history.after(before)
        allowed = None if self.allowed is None else self.allowed(before.tolist())
        if self.policy.greedy:
            token = greedy(self.policy.adjust(logits, history, allowed).unsqueeze(0))
            return token, logits.new_empty(0, logits.shape[0], dtype=torch.float64)
        assert self.uniforms is not None
        law = self.policy.law(logits, history, allowed)
        number = self.uniforms[before.shape[0] : before.shape[0] + 1]
        return drawn(law, number), law.unsqueeze(0)
