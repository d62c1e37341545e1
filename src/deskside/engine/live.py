"""A live request as the engine sees it: how it draws, when it ends."""

from dataclasses import dataclass

from deskside.core import Request
from deskside.speculate.policy import Policy
from deskside.speculate.stop import StopRule

__all__ = ["Live"]


@dataclass(frozen=True, slots=True)
class Live:
    """A request from its admission to its end."""

    request: Request
    seed: int
    policy: Policy
    stop: StopRule
    pinned: bool = True
    """Whether the request named its seed: then neither a clock nor a neighbour may matter."""
    reused: int = 0
    """Tokens of the prompt that were computed before it came."""
