"""When a sequence ends: an end token, a stop token, a stop string or its limit.

Owns the count of what a request emitted. It is asked before a commit, about the tokens that a step
would emit, so that no state owner needs a stop rule of its own; what it remembers changes after the
commit, like all state.
"""

from collections.abc import Callable, Sequence

from deskside.core import FinishReason, Request
from deskside.speculate.thought import ThoughtRule
from deskside.text.stops import StopScanner

__all__ = ["StopRule"]


class StopRule:
    """The stop rules of one request, and how far it has come."""

    def __init__(self, request: Request, eos: int, bytes_of: Callable[[int], bytes] | None) -> None:
        """Start for a request.

        Args:
            request: with its limits and stops.
            eos: the model's end token.
            bytes_of: the bytes a token adds to the text; needed for stop strings and thoughts.
        """
        params = request.params
        ends = () if params.ignore_eos else (eos,)
        self._ends = frozenset((*params.stop_token_ids, *ends))
        self._left = params.max_tokens
        self._scanner: StopScanner | None = None
        if params.stop:
            assert bytes_of is not None
            self._scanner = StopScanner(bytes_of, params.stop, params.stop_after, params.min_tokens)
        self._thought: ThoughtRule | None = None
        if params.thought is not None:
            assert bytes_of is not None
            self._thought = ThoughtRule(params.thought, bytes_of)

    @property
    def left(self) -> int:
        """Tokens that may still be emitted."""
        return self._left

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end the sequence."""
        return self._ends

    def close(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens up to where a thought is closed for the model, and what closes it.

        Changes nothing, as `cut` does.
        """
        return (tuple(tokens), ()) if self._thought is None else self._thought.cut(tokens)

    def cut(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Return the tokens that are emitted, up to the one that ends the sequence, and why.

        Changes nothing: a step may still fail. `count` is told what was really emitted.
        """
        complete = None if self._scanner is None else self._scanner.find(tokens)
        for place, token in enumerate(tokens):
            if token in self._ends or place == complete:
                return tuple(tokens[: place + 1]), FinishReason.STOP
            if place + 1 == self._left:
                return tuple(tokens[: place + 1]), FinishReason.LENGTH
        return tuple(tokens), None

    def count(self, tokens: Sequence[int]) -> None:
        """Take in the tokens that a committed step emitted."""
        self._left -= len(tokens)
        if self._thought is not None:
            self._thought.count(tokens)
        if self._scanner is not None:
            for token in tokens:
                self._scanner.feed(token)
