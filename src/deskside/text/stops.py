"""Stop strings over generated text.

Owns the rule: a stop string matches its UTF-8 bytes in the bytes of the generated tokens; the match
that is complete first wins, the longest of those that are complete together; the text is cut
before it. Stops may count only behind another text, such as the end of reasoning, and none that the
first tokens complete while a least number is asked for. The rule reads bytes, so it does not depend
on how the text is cut into feeds.
One automaton serves the engine (which token completes a stop) and the client's stream (which text
may be shown), so the two cannot disagree.
"""

import copy
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deskside.text import utf8
from deskside.text.detokenizer import Detokenizer
from deskside.text.tokenizer import TokenBytes

__all__ = ["StopScanner", "TextStream"]


@dataclass(frozen=True, slots=True)
class _Match:
    """A complete stop string: bytes of the scanned piece up to its end, and its length."""

    end: int
    length: int


class _Automaton:
    """Aho-Corasick over the stop strings: one state for each prefix, linear in bytes read.

    A state's depth is the length of the longest suffix of what was read that begins a stop string,
    which is exactly what a stream must hold back.
    """

    __slots__ = ("_depths", "_fallbacks", "_matches", "_moves", "_state")

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._moves: list[dict[int, int]] = [{}]
        self._depths = [0]
        self._matches = [0]
        self._fallbacks = [0]
        self._state = 0
        for stop in stops:
            self._insert(stop)
        self._link()

    @property
    def held(self) -> int:
        """Bytes at the end of what was read that may still become a stop string."""
        return self._depths[self._state]

    def scan(self, piece: bytes, counts: bool = True) -> _Match | None:
        """Read on to the end of `piece`, or to the end of the first stop string that counts."""
        for place, byte in enumerate(piece, start=1):
            self._state = self._step(self._state, byte)
            length = self._matches[self._state]
            if length and counts:
                return _Match(place, length)
        return None

    def _step(self, state: int, byte: int) -> int:
        while state and byte not in self._moves[state]:
            state = self._fallbacks[state]
        return self._moves[state].get(byte, 0)

    def _insert(self, stop: bytes) -> None:
        state = 0
        for byte in stop:
            if byte not in self._moves[state]:
                self._moves[state][byte] = len(self._moves)
                self._moves.append({})
                self._depths.append(self._depths[state] + 1)
                self._matches.append(0)
                self._fallbacks.append(0)
            state = self._moves[state][byte]
        self._matches[state] = len(stop)

    def _link(self) -> None:
        queue = deque(self._moves[0].values())
        while queue:
            state = queue.popleft()
            for byte, child in self._moves[state].items():
                self._fallbacks[child] = self._step(self._fallbacks[state], byte)
                # Its own stop string is the longer one; else one that ends inside it counts.
                self._matches[child] = self._matches[child] or self._matches[self._fallbacks[child]]
                queue.append(child)


class _Watch:
    """The stop strings of one text, and from where they count: a text, and a number of tokens."""

    __slots__ = ("_before", "_stops", "_waits")

    def __init__(self, stops: Sequence[str], after: str, least: int) -> None:
        self._stops = _Automaton(
            [utf8.to_bytes(stop, f"stop string {i}") for i, stop in enumerate(stops, start=1)]
        )
        self._before = _Automaton([after.encode()]) if after else None
        self._waits = least

    def fork(self) -> "_Watch":
        """Return a watch that reads on from here by itself."""
        twin = copy.copy(self)
        twin._stops, twin._before = copy.copy(self._stops), copy.copy(self._before)
        return twin

    @property
    def held(self) -> int:
        """Bytes at the end of what was read that may still become a stop string."""
        return self._stops.held

    def read(self, piece: bytes) -> _Match | None:
        """Read the bytes of the next token, or those up to the end of the stop in it."""
        free = self._free(piece)
        match = self._stops.scan(piece[free:], counts=not self._waits)
        self._waits = max(0, self._waits - 1)
        return None if match is None else _Match(free + match.end, match.length)

    def _free(self, piece: bytes) -> int:
        """Return how many bytes at the beginning of `piece` no stop can touch."""
        if self._before is None:
            return 0
        match = self._before.scan(piece)
        if match is None:
            return len(piece)
        self._before = None
        return match.end


class StopScanner:
    """Tells the engine which generated token completes a stop string; one for each sequence."""

    __slots__ = ("_bytes_of", "_stopped", "_watch")

    def __init__(
        self, bytes_of: TokenBytes, stops: Sequence[str], after: str = "", least: int = 0
    ) -> None:
        """Watch for `stops` in what `bytes_of` (`Tokenizer.text_bytes`) makes of the tokens.

        They count behind the first place where `after` ends, and the first `least` tokens
        complete none.

        Raises:
            InputError: a stop string is not valid UTF-8.
        """
        self._watch = _Watch(stops, after, least)
        self._bytes_of = bytes_of
        self._stopped = False

    @property
    def held(self) -> int:
        """Bytes at the end of what was read that may still become a stop string."""
        return self._watch.held

    def fork(self) -> "StopScanner":
        """Return a scanner that reads on from here by itself."""
        twin = copy.copy(self)
        twin._watch = self._watch.fork()
        return twin

    def find(self, tokens: Iterable[int]) -> int | None:
        """Return the place of the first token that would complete a stop string; read none."""
        ahead = self.fork()
        return next((place for place, token in enumerate(tokens) if ahead.feed(token)), None)

    def feed(self, token: int) -> bool:
        """Read one emitted token; true if it completes a stop string, after which comes none."""
        assert not self._stopped, "a token after the stop"
        self._stopped = self._watch.read(self._bytes_of(token)) is not None
        return self._stopped


class TextStream:
    """Text for a reader: whole characters, and never the beginning of a stop string."""

    __slots__ = ("_bytes_of", "_detokenizer", "_held", "_stop", "_watch")

    def __init__(
        self, bytes_of: TokenBytes, stops: Sequence[str] = (), after: str = "", least: int = 0
    ) -> None:
        """Show what `bytes_of` (`Tokenizer.text_bytes`) makes of the tokens, up to a stop.

        Stops count behind the first place where `after` ends, and the first `least` tokens
        complete none.

        Raises:
            InputError: a stop string is not valid UTF-8.
        """
        self._watch = _Watch(stops, after, least)
        self._bytes_of = bytes_of
        self._detokenizer = Detokenizer(bytes_of)
        self._held = bytearray()
        self._stop: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; nothing is shown from there on."""
        return self._stop is not None

    @property
    def stop(self) -> str | None:
        """The stop string that was found."""
        return self._stop

    def feed(self, tokens: Iterable[int]) -> str:
        """Return the text that `tokens` make certain; held back is what may become a stop."""
        return "".join(self._feed_one(token) for token in tokens)

    def finish(self) -> str:
        """End the text: a near miss is shown whole, a broken character as U+FFFD."""
        rest, self._held = bytes(self._held), bytearray()
        return self._detokenizer.feed_bytes(rest) + self._detokenizer.finish()

    def _feed_one(self, token: int) -> str:
        if self._stop is not None:
            return ""
        piece = self._bytes_of(token)
        match = self._watch.read(piece)
        self._held += piece
        if match is None:
            return self._show(len(self._held) - self._watch.held)
        start = len(self._held) - len(piece) + match.end - match.length
        self._stop = self._held[start : start + match.length].decode()
        text = self._show(start)
        self._held.clear()
        return text

    def _show(self, count: int) -> str:
        shown = bytes(self._held[:count])
        del self._held[:count]
        return self._detokenizer.feed_bytes(shown)
