"""Reasoning and answer, told apart in generated text.

Owns the split at the end of reasoning and the count of its tokens. Where the text begins is told by
the prompt (`text.chat`), never guessed: a prompt that opens a thought is answered from inside it.
A call ends a thought too, but how one is read stands in `text.tool_reader`.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from deskside.text.stops import StopScanner
from deskside.text.tokenizer import TokenBytes

__all__ = ["END_OF_REASONING", "Channel", "ReasoningCounter", "ReasoningSplitter"]

END_OF_REASONING = "</think>"


class Channel(StrEnum):
    """What a piece of generated text is."""

    REASONING = "reasoning"
    CONTENT = "content"

    @property
    def stop_after(self) -> str:
        """The text behind which stop strings count where a text begins in this channel.

        They end an answer, not a thought.
        """
        return END_OF_REASONING if self is Channel.REASONING else ""


class ReasoningSplitter:
    """Splits one text as it comes; the pieces do not depend on how the text is cut into feeds.

    Reasoning ends at the first marker, which is not shown. Reasoning that never ends stays
    reasoning; a marker in the answer is text like any other.
    """

    __slots__ = ("_channel", "_held")

    def __init__(self, start: Channel) -> None:
        """Begin in the channel that the rendered prompt left open."""
        self._channel = start
        self._held = ""

    @property
    def channel(self) -> Channel:
        """Where the text stands now."""
        return self._channel

    def feed(self, text: str) -> list[tuple[Channel, str]]:
        """Return what `text` makes certain, in order, without empty pieces.

        Held back is what may be the beginning of the marker.
        """
        if self._channel is Channel.CONTENT:
            return [(Channel.CONTENT, text)] if text else []
        text = self._held + text
        reasoning, marker, content = text.partition(END_OF_REASONING)
        if marker:
            self._channel, self._held = Channel.CONTENT, ""
            pieces = [(Channel.REASONING, reasoning), (Channel.CONTENT, content)]
            return [piece for piece in pieces if piece[1]]
        certain = len(text) - _beginning(text)
        self._held = text[certain:]
        return [(Channel.REASONING, text[:certain])] if certain else []

    def end(self) -> list[tuple[Channel, str]]:
        """Go on in the content, because something came that is no thought."""
        rest = self.finish()
        self._channel = Channel.CONTENT
        return rest

    def finish(self) -> list[tuple[Channel, str]]:
        """End the text: what was held back was reasoning after all."""
        rest, self._held = self._held, ""
        return [(Channel.REASONING, rest)] if rest else []


class ReasoningCounter:
    """Counts the tokens of the reasoning, the one that completes its end among them.

    It ends at the marker, or at the first of the texts that end it too.
    """

    __slots__ = ("_scanner", "_tokens")

    def __init__(self, bytes_of: TokenBytes, start: Channel, others: Sequence[str] = ()) -> None:
        """Count what `bytes_of` (`Tokenizer.text_bytes`) spells, from where the prompt ends."""
        inside = start is Channel.REASONING
        self._scanner = StopScanner(bytes_of, (END_OF_REASONING, *others)) if inside else None
        self._tokens = 0

    @property
    def tokens(self) -> int:
        """Tokens of reasoning so far."""
        return self._tokens

    def feed(self, tokens: Iterable[int]) -> None:
        """Read the next emitted tokens."""
        for token in tokens:
            if self._scanner is None:
                return
            self._tokens += 1
            if self._scanner.feed(token):
                self._scanner = None


def _beginning(text: str) -> int:
    """Return how many characters at the end of `text` may begin the marker."""
    most = min(len(text), len(END_OF_REASONING) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(END_OF_REASONING[:n])), 0)
