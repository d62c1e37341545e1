"""Log probabilities in the two shapes that clients know.

A token that ends inside a character is no text; it is shown by its bytes, as `bytes:\\xf0\\x9f`.
"""

from dataclasses import dataclass, field

from deskside.core import TokenLogprob
from deskside.server.openai.answer import Piece
from deskside.server.openai.replies import ChatLogprobs, ListedLogprobs, TokenLogprobs, TopLogprob
from deskside.text.detokenizer import Detokenizer
from deskside.text.tokenizer import Tokenizer

__all__ = ["ListedWriter", "chat_logprobs", "spelled"]

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
    offset: int
    _tokens: list[tuple[int, TokenLogprob]] = field(default_factory=list)
    _text: Detokenizer = field(init=False)

    def __post_init__(self) -> None:
        self._text = Detokenizer(self.tokenizer.text_bytes)

    def add(self, piece: Piece) -> None:
        """Take the tokens of a piece."""
        self._tokens += zip(piece.tokens, piece.logprobs, strict=True)

    def take(self) -> ListedLogprobs:
        """Return the lists of what was added since the last time."""
        listed = ListedLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token, entry in self._tokens:
            listed.tokens.append(spelled(self.tokenizer.token_bytes(token)))
            listed.token_logprobs.append(max(entry.logprob, FLOOR))
            listed.top_logprobs.append(self._named(entry))
            listed.text_offset.append(self.offset)
            self.offset += len(self._text.feed([token]))  # characters that it completes
        self._tokens.clear()
        return listed

    def _named(self, entry: TokenLogprob) -> dict[str, float]:
        named: dict[str, float] = {}
        for token, value in entry.top:  # the likelier of two tokens of one spelling comes first
            named.setdefault(spelled(self.tokenizer.token_bytes(token)), max(value, FLOOR))
        return named
