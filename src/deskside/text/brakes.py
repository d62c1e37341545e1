"""What a mask leaves open and should not: to run on for ever, and to spell a mark in letters.

A small model under a mask writes the digits of a fraction, or lists within lists, for ever: every
one of them is allowed. Owns how many digits in a row and how deep a nesting is enough, and which
tokens then wait until nothing else can come. The markup of a call is a control token, and the same
bytes can be spelled in others: where a mark can come, the token does. So no text is taken out of a
form that it could not end otherwise. Knows no grammar: it counts as JSON is spelled.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deskside.text.tokenizer import Tokenizer
from deskside.text.tools import DSML

__all__ = ["DEEPEST", "MOST_DIGITS", "Brakes", "Place"]

MOST_DIGITS = 40
"""In a row: enough for whole numbers of 128 bits."""
MOST_OF_EXPONENT = 2
"""Digits: with them no number is larger than a double can be."""
DEEPEST = 32
"""Lists and objects within each other."""
DIGITS = b"0123456789"
MARKUP = DSML.encode()
COUNTS = re.compile(rb"[0-9\[\]{}\"\\]")
"""What changes a place where no number and no escape is open."""
FREE = (b"a", b"q")
"""Letters of no number and no date: where they can come, other texts can."""

Marks = NDArray[np.bool_]


class Place(NamedTuple):
    """How far a text has come: digits in a row, open brackets, and whether in a JSON text."""

    digits: int = 0
    exponent: bool = False
    """Whether the digits are, or would be, of an exponent."""
    depth: int = 0
    quoted: bool = False
    escaped: bool = False

    def behind(self, word: bytes) -> "Place":
        """Return the place behind some bytes."""
        digits, exponent, depth, quoted, escaped = self
        for byte in word:
            if byte not in DIGITS:
                begins = byte in b"eE" and digits > 0 and not quoted
                exponent = begins or (exponent and not digits and byte in b"+-")
                digits = -1
            digits += 1
            if escaped:
                escaped = False
            elif byte == ord('"'):
                quoted = not quoted
            elif quoted:
                escaped = byte == ord("\\")
            elif byte in b"[{":
                depth += 1
            elif byte in b"]}":
                depth = max(0, depth - 1)
        return Place(digits, exponent, depth, quoted, escaped)

    @property
    def settled(self) -> bool:
        """Whether no number and no escape is open, so that most bytes change nothing."""
        return not (self.digits or self.exponent or self.escaped)

    @property
    def long(self) -> bool:
        """Whether there are digits enough."""
        return self.digits >= (MOST_OF_EXPONENT if self.exponent else MOST_DIGITS)


class Brakes:
    """Takes out of a mask what would go on without need, for one vocabulary."""

    __slots__ = (
        "_blank",
        "_bytes_of",
        "_digits",
        "_ends_and_opens",
        "_free",
        "_mark",
        "_opens",
        "_plain",
        "_spells",
    )

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        """Prepare for a tokenizer and a model with a vocabulary of at least its size.

        Every token is looked at, which takes some tenths of a second for a large one.
        """
        self._bytes_of = tokenizer.text_bytes
        words = [tokenizer.text_bytes(token) for token in range(tokenizer.vocab_size)]
        self._mark = next((token for token, word in enumerate(words) if word == MARKUP), None)
        self._plain = [word != MARKUP and not COUNTS.search(word) for word in words]
        begins = [bool(word) and word != MARKUP and MARKUP.startswith(word) for word in words]
        self._spells = _marks(begins, vocab)
        opens = [b"[" in word or b"{" in word for word in words]
        self._free = [token for token, word in enumerate(words) if word in FREE]
        self._blank = _marks([word.isspace() for word in words], vocab)
        self._digits = _marks([word[:1].isdigit() for word in words], vocab)
        self._opens = _marks(opens, vocab)
        quoted = Place(quoted=True)
        self._ends_and_opens = _marks(
            [one and quoted.behind(word).depth > 0 for one, word in zip(opens, words, strict=True)],
            vocab,
        )

    def behind(self, place: Place, token: int) -> Place:
        """Return the place behind a token; a call's markup is no JSON, and begins anew."""
        if place.settled and self._plain[token]:
            return place  # most tokens: a step is short
        word = self._bytes_of(token)
        return Place() if word == MARKUP else place.behind(word)

    def narrowed(self, place: Place, mask: Marks) -> Marks:
        """Return what may come at a place [vocab], of what a grammar allows there.

        Only where no free text can come, and only as far as something is left.
        """
        deep = place.depth >= DEEPEST
        marked = self._mark is not None and mask[self._mark]
        if not (place.long or deep or marked):
            return mask
        free = mask[self._free].any()
        if marked and not free:
            mask = mask & ~self._spells
        if place.long and not free:
            mask = self._left(mask, self._digits)
        if deep and place.quoted:
            mask = self._left(mask, self._ends_and_opens)
        elif deep and not free:
            mask = self._left(mask, self._opens)
        return mask

    def _left(self, mask: Marks, barred: Marks) -> Marks:
        """Return a mask without what is barred, unless nothing but white space would be left."""
        kept = mask & ~barred
        return kept if (kept & ~self._blank).any() else mask


def _marks(found: Sequence[bool], vocab: int) -> Marks:
    marks = np.zeros(vocab, np.bool_)
    marks[: len(found)] = found
    return marks
