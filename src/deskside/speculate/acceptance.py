"""Exact acceptance: which proposals stay, and the token that follows them.

Proposal i, drawn from q_i, is accepted with probability min(1, p_i / q_i). At the first rejection
the next token is drawn from max(p_i - q_i, 0), normalised; after full acceptance from p_k. What is
emitted then follows p alone (Leviathan et al. 2023, Chen et al. 2023). With one-hot laws, at
temperature 0, a proposal stays exactly where it is the target's argmax.

Uniform numbers are inputs. Nothing here depends on a value that the host would have to wait for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deskside.uniforms import Purpose, uniform

__all__ = [
    "LEAST_RESIDUAL",
    "BlockUniforms",
    "Verdict",
    "accept",
    "accept_greedy",
    "drawn",
    "stacked",
]

LEAST_RESIDUAL = 1e-8
"""Residual mass at or below which only rounding is left; the draw is then from p."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification decided: accepted proposals, and the token drawn after them."""

    accepted: int
    token: int

    @staticmethod
    def read(packed: Tensor) -> "list[Verdict]":
        """Copy verdicts [n, 2] int64 to the host."""
        return [Verdict(accepted, token) for accepted, token in packed.tolist()]


@dataclass(frozen=True, slots=True)
class BlockUniforms:
    """The numbers that a block of k proposals may use, each in [0, 1)."""

    accept: Tensor
    """[..., k] float64."""
    next: Tensor
    """[..., k + 1] float64: for a residual draw at row 0..k-1, for the target draw at row k."""

    @staticmethod
    def of(seed: int, choice: int, position: int, proposals: int) -> "BlockUniforms":
        """Ask for the numbers of a block.

        Args:
            seed: of the request.
            choice: which of the request's answers.
            position: absolute position that proposal 0 is for.
            proposals: k, 0 for a plain draw.
        """

        def numbers(purpose: Purpose, first: int, count: int) -> list[float]:
            return [uniform(seed, choice, first + i, purpose) for i in range(count)]

        residual = numbers(Purpose.RESIDUAL, position, proposals)
        target = numbers(Purpose.TARGET, position + proposals, 1)
        return BlockUniforms(
            torch.tensor(numbers(Purpose.ACCEPT, position, proposals), dtype=torch.float64),
            torch.tensor(residual + target, dtype=torch.float64),
        )


def accept(p: Tensor, q: Tensor, proposals: Tensor, uniforms: BlockUniforms) -> Tensor:
    """Judge a block of proposals.

    Args:
        p: [..., k + 1, vocab] float64, the target's law of every row.
        q: [..., k, vocab] float64, the laws the proposals were drawn from; k may be 0.
        proposals: [..., k] int64.
        uniforms: the block's numbers.

    Returns:
        [..., 2] int64: accepted proposals, and the next token.
    """
    at = proposals.unsqueeze(-1)
    likely = p[..., :-1, :].gather(-1, at).squeeze(-1)
    drafted = q.gather(-1, at).squeeze(-1)
    kept = uniforms.accept * drafted < likely
    accepted = kept.long().cumprod(-1).sum(-1, keepdim=True)
    # Behind the last proposal nothing was proposed: q is zero there and the residual is p.
    q = torch.cat((q, torch.zeros_like(p[..., :1, :])), dim=-2)
    row = accepted.unsqueeze(-1)
    target = p.take_along_dim(row, -2).squeeze(-2)
    residual = (target - q.take_along_dim(row, -2).squeeze(-2)).clamp(min=0)
    enough = residual.sum(-1, keepdim=True) > LEAST_RESIDUAL
    law = torch.where(enough, residual, target)
    token = drawn(law, uniforms.next.take_along_dim(accepted, -1))
    return torch.cat((accepted, token), dim=-1)


def accept_greedy(best: Tensor, proposals: Tensor) -> Tensor:
    """Judge a block at temperature 0, without forming laws.

    Args:
        best: [..., k + 1] int64, the target's argmax of every row.
        proposals: [..., k] int64.

    Returns:
        [..., 2] int64: accepted proposals, and the next token.
    """
    if proposals.shape[-1] == 0:
        return torch.cat((torch.zeros_like(best), best), dim=-1)
    kept = (best[..., :-1] == proposals).cumprod(-1)
    accepted = kept.sum(-1, keepdim=True)
    return torch.cat((accepted, best.gather(-1, accepted)), dim=-1)


def stacked(uniforms: Sequence[BlockUniforms]) -> BlockUniforms:
    """Put the numbers of blocks of one width together, block after block."""
    return BlockUniforms(
        torch.stack([one.accept for one in uniforms]), torch.stack([one.next for one in uniforms])
    )


def drawn(law: Tensor, number: Tensor) -> Tensor:
    """Return the tokens [..., 1] where the mass of laws [..., vocab] passes the numbers [..., 1].

    The numbers may live on the device; nothing is read by the host.
    """
    mass = law.cumsum(-1)
    passed = (mass <= number * mass[..., -1:]).sum(-1, keepdim=True)
    tokens = torch.arange(law.shape[-1]).expand(law.shape)
    last = torch.where(law > 0, tokens, 0).amax(-1, keepdim=True)
    return torch.minimum(passed, last)
