"""The tokens of one answer to a conversation, as reasoning, content and calls for a reader.

Owns the order of what a token goes through: bytes to whole characters, stop strings, calls, the end
of reasoning. Whatever way the tokens come, the pieces of a channel add up to the same text, and the
calls are the same. Knows no shape of a reply.
"""

from collections.abc import Sequence
from typing import TypeAlias

from deskside.text.reasoning import Channel, ReasoningCounter, ReasoningSplitter
from deskside.text.stops import TextStream
from deskside.text.tokenizer import TokenBytes
from deskside.text.tool_reader import ToolReader
from deskside.text.tools import OPEN, ToolCall

__all__ = ["AnswerStream", "Part"]

Part: TypeAlias = tuple[Channel, str] | ToolCall
"""A piece of text, or a whole call."""


class AnswerStream:
    """Text by channel, never half a character nor the beginning of a stop string or marker."""

    __slots__ = ("_called", "_counter", "_parallel", "_reader", "_splitter", "_text")

    def __init__(
        self,
        bytes_of: TokenBytes,
        start: Channel,
        stops: Sequence[str] = (),
        least: int = 0,
        *,
        tools: bool = False,
        parallel: bool = True,
    ) -> None:
        """Read on from where the prompt ends.

        Stops count in the content alone, and the first `least` tokens complete none. With `tools`
        blocks of calls are read; the first one ends a thought that is still open. Calls behind the
        first are told where they are `parallel`.

        Raises:
            InputError: a stop string is not valid UTF-8.
        """
        self._text = TextStream(bytes_of, stops, start.stop_after, least)
        self._reader = ToolReader() if tools else None
        self._parallel = parallel
        self._called = False
        self._splitter = ReasoningSplitter(start)
        self._counter = ReasoningCounter(bytes_of, start, (OPEN,) if tools else ())

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning so far, its end among them; the other tokens are content."""
        return self._counter.tokens

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._text.stop

    def feed(self, tokens: Sequence[int]) -> list[Part]:
        """Return what the next emitted tokens make certain, in order, without empty pieces."""
        self._counter.feed(tokens)
        return self._read(self._text.feed(tokens))

    def finish(self) -> list[Part]:
        """End the answer: show what was held back, a broken character as U+FFFD."""
        parts = self._read(self._text.finish())
        if self._reader is not None:
            parts += self._parts(self._reader.finish())
        return [*parts, *self._splitter.finish()]

    def _read(self, text: str) -> list[Part]:
        return self._parts([text] if self._reader is None else self._reader.feed(text))

    def _parts(self, pieces: Sequence[str | ToolCall]) -> list[Part]:
        parts: list[Part] = []
        for piece in pieces:
            if isinstance(piece, ToolCall):
                parts += self._splitter.end()
                parts += [piece] if self._parallel or not self._called else []
                self._called = True
            else:
                parts += self._splitter.feed(piece)
        return parts
