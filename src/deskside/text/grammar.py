"""Grammars that a text has to keep: written, judged and compiled by llguidance.

Owns the vocabulary as the library sees it, the bounds on what a client may ask for, and a store of
compiled grammars by their text. What is refused is refused here, in the words of a request. Knows
no request and no position in a text (`text.guide`).
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from deskside.errors import GrammarError, InputError
from deskside.text.formats import strict_formats
from deskside.text.schema import check_patterns
from deskside.text.tokenizer import Tokenizer
from deskside.text.tools import DSML

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # a name for checkers alone

__all__ = [
    "INSIDE",
    "Compiler",
    "Matcher",
    "check_length",
    "json_grammar",
    "lark_grammar",
    "library_grammar",
    "regex_grammar",
]

LONGEST = 1 << 18
"""Characters of a grammar, or of a schema as JSON."""
MOST_KEPT = 64
"""Compiled grammars that are kept for the next request."""
LIMITS = LLParserLimits(max_grammar_size=20_000, verbose_errors=False)
"""A rule that needs more, or a mask that would take more than some 20 ms, is refused."""
LOST = "the grammar cannot be followed any further"
REMEDY = "ask for a simpler form"
SPACE = r"( |\n {0,32})?"
"""White space in JSON: enough for any layout in lines, and never without end."""
LARK_PIECES = re.compile(
    r"""//[^\n]*|\#[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/"""
    r"""|(?P<refused>&|~(?!\s*[0-9])|%(?!ignore\b|import\b)\w*)"""
)
"""Comments, strings and expressions of Lark, whatever they hold; and what is refused outside."""


INSIDE: "JsonCompileOptions" = {
    "whitespace_pattern": SPACE,
    "lenient": False,
    "coerce_one_of": False,
}
"""How JSON is written."""


def library_grammar(text: str) -> str:
    """Return the grammar of a text in the library's own language, which no client wrote.

    Raises:
        InputError: it is too long.
    """
    check_length(text)
    return LLMatcher.grammar_from_lark(text)


def json_grammar(schema: Mapping[str, Any]) -> str:
    """Return the grammar of JSON texts that a schema admits.

    Raises:
        InputError: the schema is too long or too deep, or brings too many patterns together.
    """
    text = json.dumps(schema, ensure_ascii=False)
    check_length(text)
    check_patterns(schema)
    text = json.dumps(strict_formats(schema), ensure_ascii=False)
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=INSIDE)
    except ValueError as error:
        raise InputError(_line(str(error))) from error


def regex_grammar(pattern: str) -> str:
    """Return the grammar of the texts that a regular expression matches whole.

    Raises:
        InputError: it is too long.
    """
    check_length(pattern)
    return LLMatcher.grammar_from_regex(pattern)


def lark_grammar(text: str) -> str:
    """Return the grammar that a client's text in llguidance's dialect of Lark describes.

    Terminals that must match together, or may not match, are refused: the library needs time for
    them that doubles with each. So are blocks of other languages, which would hide them.

    Raises:
        InputError: it is too long, or has what is refused; names its place.
    """
    check_length(text)
    for found in LARK_PIECES.finditer(text):
        if found["refused"]:
            line = text.count("\n", 0, found.start()) + 1
            place = found.start() - text.rfind("\n", 0, found.start())
            raise InputError(f"at {line}({place}): {found[0]} is not served in a grammar")
    return LLMatcher.grammar_from_lark(text)


class Matcher:
    """How far one text has come in its grammar; only texts that the grammar admits can come."""

    __slots__ = ("_eos", "_inner", "_vocab")

    def __init__(self, inner: LLMatcher, vocab: int, eos: int) -> None:
        self._inner = inner
        self._vocab = vocab
        self._eos = eos

    def fork(self) -> "Matcher":
        """Return one that reads on from here by itself."""
        return Matcher(self._inner.deep_copy(), self._vocab, self._eos)

    def take(self, token: int) -> bool:
        """Read a token; false where it can't come, and then nothing has changed.

        The end token is never taken: behind it there is no text.

        Raises:
            GrammarError: the grammar is too large to go on in.
        """
        if token == self._eos:
            return False
        taken = self._inner.try_consume_tokens([token]) == 1
        self._check()
        return taken

    def give_back(self, count: int) -> None:
        """Forget the last `count` tokens. A grammar that was too large stays so."""
        if count and not self._inner.is_error():
            assert self._inner.rollback(count), self._inner.get_error()

    def allowed(self) -> NDArray[np.bool_]:
        """Return [vocab] whether a token can come next; the end token where the text may end.

        Raises:
            GrammarError: the grammar is too large to go on in, or leads nowhere.
        """
        bits = np.frombuffer(self._inner.compute_bitmask(), np.uint8)
        mask = np.zeros(self._vocab, np.bool_)
        known = np.unpackbits(bits, count=min(self._vocab, 8 * len(bits)), bitorder="little")
        mask[: len(known)] = known
        self._check()
        if not mask.any():
            raise GrammarError(f"{LOST}: no text goes on from here; {REMEDY}")
        return mask

    def _check(self) -> None:
        if self._inner.is_error():
            raise GrammarError(f"{LOST}: {_line(self._inner.get_error())}; {REMEDY}")


class Compiler:
    """Compiles grammars for one vocabulary; threads may share it."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        """Prepare for a tokenizer and a model with a vocabulary of at least its size.

        The vocabulary is built for the first grammar, which takes a second for a large one.
        """
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._inner: LLTokenizer | None = None
        self._kept: OrderedDict[str, Matcher] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, grammar: str) -> Matcher:
        """Return a matcher at the beginning of a text.

        Raises:
            InputError: the grammar is none, is too large, or admits no text; says where.
        """
        with self._lock:
            kept = self._kept.get(grammar)
            if kept is not None:
                self._kept.move_to_end(grammar)
                return kept.fork()
            vocabulary = self._vocabulary()
        made = self._compile(grammar, vocabulary)
        with self._lock:
            self._kept[grammar] = made
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return made.fork()

    def _compile(self, grammar: str, vocabulary: LLTokenizer) -> Matcher:
        inner = LLMatcher(vocabulary, grammar, log_level=0, limits=LIMITS)
        told = [inner.get_error()] if inner.is_error() else inner.get_grammar_warnings()
        if told:
            raise InputError(_line("; ".join(told)))
        made = Matcher(inner, self._vocab, self._tokenizer.eos)
        made.allowed()
        return made

    def _vocabulary(self) -> LLTokenizer:
        if self._inner is None:
            self._inner = LLTokenizer(TokenizerWrapper(_Words(self._tokenizer)))
        return self._inner


class _Words:
    """A tokenizer as llguidance wants to see it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos
        self.bos_token_id = tokenizer.bos
        self.tokens: Sequence[bytes] = [
            tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)
        ]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that must come; the markup of a call is a token of its own.

        No other control token is: whoever wrote the grammar may have spelled it.
        """
        mark = self._tokenizer.controls.get(DSML)
        if mark is None:
            return list(self._tokenizer.encode_plain(text))
        parts = (self._tokenizer.encode_plain(part) for part in text.split(DSML))
        return [token for part in parts for token in (mark, *part)][1:]


def check_length(text: str) -> None:
    """Refuse a grammar, or what becomes one, that is too long."""
    if len(text) > LONGEST:
        raise InputError(f"is too long: need {len(text)} characters, have {LONGEST}")


def _line(told: str) -> str:
    """Return what the library says in one line, without its notes to itself."""
    return " ".join(told.replace("<non-verbose/>", "").split())[:300]
