"""The tokens of one answer to a conversation, as reasoning and content for a reader.

Owns the order of what a token goes through: bytes to whole characters, stop strings, the end of
reasoning. Whatever way the tokens come, the pieces of a channel add up to the same text. Knows no
shape of a reply.
"""

from collections.abc import Sequence

from deskside.text.reasoning import Channel, ReasoningCounter, ReasoningSplitter
from deskside.text.stops import TextStream
from deskside.text.tokenizer import TokenBytes

__all__ = ["AnswerStream"]


class AnswerStream:
    """Text by channel, never half a character nor the beginning of a stop string or marker."""

    __slots__ = ("_counter", "_splitter", "_text")

    def __init__(
        self, bytes_of: TokenBytes, start: Channel, stops: Sequence[str] = (), least: int = 0
    ) -> None:
        """Read on from where the prompt ends.

        Stops count in the content alone, and the first `least` tokens complete none.

        Raises:
            InputError: a stop string is not valid UTF-8.
        """
        self._text = TextStream(bytes_of, stops, start.stop_after, least)
        self._splitter = ReasoningSplitter(start)
        self._counter = ReasoningCounter(bytes_of, start)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning so far, its end among them; the other tokens are content."""
        return self._counter.tokens

    def feed(self, tokens: Sequence[int]) -> list[tuple[Channel, str]]:
        """Return what the next emitted tokens make certain, in order, without empty pieces."""
        self._counter.feed(tokens)
        return self._splitter.feed(self._text.feed(tokens))

    def finish(self) -> list[tuple[Channel, str]]:
        """End the answer: show what was held back, a broken character as U+FFFD."""
        return self._splitter.feed(self._text.finish()) + self._splitter.finish()
