"""What may come next in one text under a constraint, and the way back from what was proposed.

Owns the place in the text: still in what comes before, such as a thought, or in the grammar. The
grammar begins at a token. So until then no token may reach over its beginning: what such a token
says of it would be read by nobody. Knows no position and no rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deskside.core import Constraint
from deskside.text.brakes import Brakes, Place
from deskside.text.grammar import Compiler, Matcher
from deskside.text.stops import StopScanner
from deskside.text.tokenizer import Tokenizer

__all__ = ["Guide", "Guides"]

Scanners = tuple[StopScanner, ...]
"""One for the text that the grammar comes behind, then one for each text that may not come."""
Ends = tuple[NDArray[np.int64], ...]
"""By the number of bytes of a text that stand there already: the tokens that would end it."""


class Guides:
    """Begins texts under constraints, for one vocabulary; threads may share it."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        """Prepare for a tokenizer and a model with a vocabulary of at least its size."""
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._compiler = Compiler(tokenizer, vocab)
        self._brakes: Brakes | None = None
        self._words: list[bytes] = []
        self._ends: dict[tuple[str, bool], Ends] = {}

    def begin(self, constraint: Constraint) -> "Guide":
        """Return the guide of a text that is empty yet.

        What takes long is done once for a grammar; a thread may do it beforehand.

        Raises:
            InputError: the grammar is none, is too large, or admits no text.
        """
        matcher = self._compiler.begin(constraint.grammar)
        if self._brakes is None:
            self._brakes = Brakes(self._tokenizer, self._vocab)
        if not constraint.after:
            return Guide(matcher, self._brakes)
        texts = (constraint.after, *constraint.without)
        scanners = tuple(StopScanner(self._tokenizer.text_bytes, [text]) for text in texts)
        barred = [self._ending(text, over=text == constraint.after) for text in texts]
        before = _Before(self._vocab, self._tokenizer.eos, scanners, barred)
        return Guide(matcher, self._brakes, before)

    def _ending(self, text: str, *, over: bool) -> Ends:
        """Return the tokens that end a text, only those that go on behind it where `over`."""
        if (text, over) not in self._ends:
            if not self._words:
                tokens = range(self._tokenizer.vocab_size)
                self._words = [self._tokenizer.text_bytes(token) for token in tokens]
            self._ends[text, over] = _ending(self._words, text.encode(), over)
        return self._ends[text, over]


@dataclass(frozen=True, slots=True)
class _Before:
    """What may come before a grammar begins: all but its end, and what reaches over it."""

    vocab: int
    eos: int
    scanners: Scanners
    """At the beginning."""
    barred: Sequence[Ends]
    """For each of them."""

    def allowed(self, scanners: Scanners) -> NDArray[np.bool_]:
        """Return [vocab] whether a token can come next."""
        mask = np.ones(self.vocab, np.bool_)
        mask[self.eos] = False
        for ends, one in zip(self.barred, scanners, strict=True):
            mask[ends[one.held]] = False
        return mask


def _ending(words: Sequence[bytes], text: bytes, over: bool) -> Ends:
    """Return the tokens that end a text; it must not begin again within itself."""
    candidates = [(token, word) for token, word in enumerate(words) if text[-1:] in word]

    def ends(word: bytes, rest: bytes) -> bool:
        if word.startswith(rest):
            return len(word) > len(rest) or not over
        place = word.find(text)
        return place >= 0 and (place + len(text) < len(word) or not over)

    return tuple(
        np.array([token for token, word in candidates if ends(word, text[there:])], np.int64)
        for there in range(len(text))
    )


class Guide:
    """One text: what was taken, and what can come behind it."""

    __slots__ = ("_before", "_brakes", "_matcher", "_trail")

    def __init__(self, matcher: Matcher, brakes: Brakes, before: _Before | None = None) -> None:
        self._matcher = matcher
        self._brakes = brakes
        self._before = before
        self._trail: list[Scanners | Place] = [Place() if before is None else before.scanners]
        """Behind each taken token that can be given back: how far the text before has come, or the
        place in the grammar."""

    def allowed(self) -> NDArray[np.bool_]:
        """Return [vocab] whether a token can come next; the end token where the text may end.

        Raises:
            GrammarError: the grammar is too large to go on in, or leads nowhere.
        """
        here = self._trail[-1]
        if isinstance(here, Place):
            return self._brakes.narrowed(here, self._matcher.allowed())
        assert self._before is not None
        return self._before.allowed(here)

    def take(self, token: int) -> bool:
        """Read a token; false where it can't come, and then nothing has changed.

        The end token is never taken: behind it there is no text.

        Raises:
            GrammarError: the grammar is too large to go on in.
        """
        here = self._trail[-1]
        if isinstance(here, Place):
            taken = self._matcher.take(token)
            if taken:
                self._trail.append(self._brakes.behind(here, token))
            return taken
        assert self._before is not None
        if not self._before.allowed(here)[token]:
            return False
        after, *others = [one.fork() for one in here]
        begins = after.feed(token)
        for one in others:
            one.feed(token)
        self._trail.append(Place() if begins else (after, *others))
        return True

    def give_back(self, count: int) -> None:
        """Forget the last `count` tokens, of those that were taken since `settle`."""
        assert count < len(self._trail)
        kept = len(self._trail) - count
        # A token was read by the grammar where the text stood in it before.
        self._matcher.give_back(sum(isinstance(one, Place) for one in self._trail[kept - 1 : -1]))
        del self._trail[kept:]

    def settle(self) -> None:
        """Let all that was taken stay."""
        del self._trail[:-1]
