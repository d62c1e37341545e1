"""Log probabilities in the two shapes that clients know.

A token that ends inside a character is no text; it is shown by its bytes, as `bytes:\\xf0\\x9f`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from deskside.core import TokenLogprob
from deskside.server.openai.answer import Piece
from deskside.server.openai.replies import ChatLogprobs, ListedLogprobs, TokenLogprobs, TopLogprob
from deskside.text.detokenizer import Detokenizer
from deskside.text.tokenizer import Tokenizer

__all__ = ["ListedWriter", "chat_logprobs", "joined", "spelled"]

FLOOR = -9999.0
"""Stands for a probability of zero, whose logarithm JSON cannot say."""


def spelled(data: bytes) -> str:
    """Return the text of a token's bytes, or their escapes where they are no text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(tokenizer: Tokenizer, piece: Piece) -> ChatLogprobs:
    """Return the entries of a piece's tokens, one for each."""
    return ChatLogprobs(
        content=[
            TokenLogprobs(
                **_top(tokenizer, token, entry.logprob).model_dump(),
                top_logprobs=[_top(tokenizer, other, value) for other, value in entry.top],
            )
            for token, entry in zip(piece.tokens, piece.logprobs, strict=True)
        ]
    )


def _top(tokenizer: Tokenizer, token: int, logprob: float) -> TopLogprob:
    data = tokenizer.token_bytes(token)
    return TopLogprob(token=spelled(data), logprob=max(logprob, FLOOR), bytes=list(data))


@dataclass(slots=True)
class ListedWriter:
    """Collects the lists of a completion; offsets count characters of the whole text."""

    tokenizer: Tokenizer
    shown: int
    """Characters before the first emitted token."""
    prompt: Sequence[int] = ()
    """Tokens of a prompt that is scored and whose lists were not taken; they come first."""
    _scored: list[TokenLogprob] = field(default_factory=list)
    _tokens: list[tuple[int, TokenLogprob]] = field(default_factory=list)
    _offset: int = field(init=False)
    _text: Detokenizer = field(init=False)

    def __post_init__(self) -> None:
        self._offset = self.shown
        self._text = Detokenizer(self.tokenizer.text_bytes)

    @property
    def prompt_ready(self) -> bool:
        """Whether a prompt is scored whole, all tokens but the first, and was not taken yet."""
        return bool(self.prompt) and len(self._scored) == len(self.prompt) - 1

    def add(self, piece: Piece) -> None:
        """Take the tokens of a piece."""
        self._scored += piece.prompt_logprobs
        self._tokens += zip(piece.tokens, piece.logprobs, strict=True)

    def take_prompt(self) -> ListedLogprobs:
        """Return the lists of the prompt; its first token follows nothing and has no number."""
        listed, prompt = _nothing(), self.prompt
        self.prompt = ()
        text, offset = Detokenizer(self.tokenizer.text_bytes), 0
        for token, entry in zip(prompt, (None, *self._scored), strict=True):
            self._list(listed, token, entry, offset)
            offset += len(text.feed([token]))  # characters that it completes
        return listed

    def take(self) -> ListedLogprobs:
        """Return the lists of what was emitted since the last time."""
        listed = _nothing()
        for token, entry in self._tokens:
            self._list(listed, token, entry, self._offset)
            self._offset += len(self._text.feed([token]))
        self._tokens.clear()
        return listed

    def _list(
        self, listed: ListedLogprobs, token: int, entry: TokenLogprob | None, offset: int
    ) -> None:
        listed.tokens.append(spelled(self.tokenizer.token_bytes(token)))
        listed.token_logprobs.append(None if entry is None else max(entry.logprob, FLOOR))
        listed.top_logprobs.append(None if entry is None else self._named(entry))
        listed.text_offset.append(offset)

    def _named(self, entry: TokenLogprob) -> dict[str, float]:
        named: dict[str, float] = {}
        for token, value in entry.top:  # the likelier of two tokens of one spelling comes first
            named.setdefault(spelled(self.tokenizer.token_bytes(token)), max(value, FLOOR))
        return named


def joined(first: ListedLogprobs, then: ListedLogprobs) -> ListedLogprobs:
    """Return the lists of two stretches of text as one."""
    return ListedLogprobs(
        tokens=first.tokens + then.tokens,
        token_logprobs=first.token_logprobs + then.token_logprobs,
        top_logprobs=first.top_logprobs + then.top_logprobs,
        text_offset=first.text_offset + then.text_offset,
    )


def _nothing() -> ListedLogprobs:
    return ListedLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
