"""When a thought is closed for a model that does not close it: by a budget, or because it repeats.

Like a stop rule it is asked before a commit, about the tokens that a step would emit, and told
afterwards which were. What it adds behind them is forced: known like a prompt, drawn by nobody.
"""

from collections.abc import Sequence

from deskside.core import Thought
from deskside.text.stops import StopScanner
from deskside.text.tokenizer import TokenBytes

__all__ = ["ThoughtRule"]

LONGEST_PERIOD = 64
LEAST_REPEATED = 32
"""Tokens that a repetition must have in all: short ones are a matter of style."""


class ThoughtRule:
    """The thought of one request, and how far it has come."""

    __slots__ = ("_close", "_left", "_loops", "_scanner")

    def __init__(self, thought: Thought, bytes_of: TokenBytes) -> None:
        """Begin inside a thought; `bytes_of` says what a token adds to the text."""
        self._scanner: StopScanner | None = StopScanner(bytes_of, thought.ends)
        self._close = thought.close
        self._left = thought.limit
        self._loops = _Loops(thought.repeats) if thought.repeats else None

    def cut(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens up to where the thought is closed, and what closes it.

        Changes nothing: a step may still fail. `count` is told what was really emitted.
        """
        if self._scanner is None:
            return tuple(tokens), ()
        end = self._scanner.find(tokens)
        own = len(tokens) if end is None else end
        last = self._last(tokens[:own])
        if last is None:
            return tuple(tokens), ()
        return tuple(tokens[:last]), self._close

    def count(self, tokens: Sequence[int]) -> None:
        """Take in the tokens that a committed step emitted, forced ones among them."""
        for token in tokens:
            if self._scanner is None:
                return
            if self._left is not None:
                self._left -= 1
            if self._loops is not None:
                self._loops.feed(token)
            if self._scanner.feed(token):
                self._scanner = None

    def _last(self, tokens: Sequence[int]) -> int | None:
        """Return how many of the thought's tokens may still come, if the thought ends in them."""
        lasts = []
        if self._left is not None and self._left <= len(tokens):
            lasts.append(self._left)
        if self._loops is not None:
            ahead = self._loops.fork()
            lasts += [place for place, token in enumerate(tokens, 1) if ahead.feed(token)][:1]
        return min(lasts, default=None)


class _Loops:
    """Whether the end of a text is one piece again and again; a count for each length of it."""

    __slots__ = ("_known", "_repeats", "_runs")

    def __init__(self, repeats: int) -> None:
        self._repeats = repeats
        self._known: list[int] = []
        self._runs = [0] * (LONGEST_PERIOD + 1)
        """By length of the piece: tokens at the end that equal the one a piece before."""

    def fork(self) -> "_Loops":
        """Return one that reads on from here by itself."""
        twin = _Loops(self._repeats)
        twin._known, twin._runs = list(self._known), list(self._runs)
        return twin

    def feed(self, token: int) -> bool:
        """Read a token; true if the text ends in enough repetitions."""
        self._known.append(token)
        if len(self._known) > LONGEST_PERIOD + 1:
            del self._known[0]
        found = False
        for period in range(1, len(self._known)):
            same = self._known[-1 - period] == token
            run = self._runs[period] = self._runs[period] + 1 if same else 0
            whole = run + period
            found |= same and whole >= max(self._repeats * period, LEAST_REPEATED)
        return found
