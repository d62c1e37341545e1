"""When a sequence ends: an end token, a stop token, a stop string or its limit.

Owns the count of what a request emitted. It is asked before a commit, about the tokens that a step
would emit, so that no state owner needs a stop rule of its own.
"""

from collections.abc import Callable, Sequence

from deskside.core import FinishReason, Request
from deskside.text.stops import StopScanner

__all__ = ["StopRule"]


class StopRule:
    """The stop rules of one request, and how far it has come."""

    def __init__(self, request: Request, eos: int, bytes_of: Callable[[int], bytes] | None) -> None:
        """Start for a request.

        Args:
            request: with its limits and stops.
            eos: the model's end token.
            bytes_of: the bytes a token adds to the text; needed for stop strings only.
        """
        params = request.params
        ends = () if params.ignore_eos else (eos,)
        self._ends = frozenset((*params.stop_token_ids, *ends))
        self._left = params.max_tokens
        self._scanner: StopScanner | None = None
        if params.stop:
            assert bytes_of is not None
            self._scanner = StopScanner(bytes_of, params.stop, params.stop_after)

    @property
    def left(self) -> int:
        """Tokens that may still be emitted."""
        return self._left

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end the sequence."""
        return self._ends

    def take(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Return the tokens that are emitted, up to the one that ends the sequence, and why."""
        for count, token in enumerate(tokens, start=1):
            self._left -= 1
            reason = self._reason(token)
            if reason is not None:
                return tuple(tokens[:count]), reason
        return tuple(tokens), None

    def _reason(self, token: int) -> FinishReason | None:
        if token in self._ends:
            return FinishReason.STOP
        if self._scanner is not None and self._scanner.feed(token):
            return FinishReason.STOP
        return FinishReason.LENGTH if self._left == 0 else None
