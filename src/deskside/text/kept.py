"""The token ids of answers that were given, so that a next turn goes on from the very same.

A client sends back an answer as text, and that text may be cut into other tokens than those that
were drawn. The ids of a plain stretch of an answer are kept by a digest of everything that stands
before it and of its own text: they come back for the same stretch of the same conversation, and
they spell it to the byte, or call what it calls. The oldest leave first.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from threading import Lock

from deskside.text import utf8
from deskside.text.tokenizer import Tokenizer
from deskside.text.tools import DSML, ToolCall, written_calls

__all__ = ["MOST_IDS", "OVERHEAD", "START", "KeptIds", "behind"]

MOST_IDS = 2**20
"""Ids that are kept in all."""
OVERHEAD = 64
"""Ids that a stretch counts for besides its own: what it costs however short it is."""

START = b""
"""The digest of nothing."""


def behind(trail: bytes, text: str, *, control: bool) -> bytes:
    """Return the digest of what had another one, and then a control token or a plain text.

    Raises:
        InputError: the text holds a lone surrogate.
    """
    return sha256(trail + (b"c" if control else b"t") + utf8.to_bytes(text, "the text")).digest()


class KeptIds:
    """Ids of plain stretches by what stands before and in them. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, most: int = MOST_IDS) -> None:
        self._tokenizer = tokenizer
        self._names = {token: name for name, token in tokenizer.controls.items()}
        self._most = most
        self._count = 0
        self._found: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = Lock()

    @property
    def count(self) -> int:
        """Ids that are kept, each stretch with its overhead."""
        return self._count

    def find(self, key: bytes) -> tuple[int, ...] | None:
        """Return the ids of the stretch with this digest."""
        with self._lock:
            ids = self._found.get(key)
            if ids is not None:
                self._found.move_to_end(key)
            return None if ids is None else tuple(ids)

    def keep(self, trail: bytes, tokens: Sequence[int], calls: Sequence[ToolCall] = ()) -> None:
        """Remember an answer behind a prompt with this digest, up to what is no whole text.

        A client sends the calls that it was told, not the text in which they were drawn. So what
        was drawn of them is found by the text in which they would be written.
        """
        stretches = list(self._stretches(tokens))
        written = _written([name for _, name in stretches], calls)
        for place, (stretch, name) in enumerate(stretches):
            after = self._keep(trail, stretch, written.get(place))
            if after is None or name is None:
                return
            trail = behind(after, name, control=True)

    def _stretches(self, tokens: Sequence[int]) -> Iterator[tuple[list[int], str | None]]:
        """Yield plain stretches, each with the name of the control token that ends it, if any."""
        stretch: list[int] = []
        for token in tokens:
            name = self._names.get(token)
            if name is None:
                stretch.append(token)
            else:
                yield stretch, name
                stretch = []
        yield stretch, None

    def _keep(self, trail: bytes, stretch: Sequence[int], written: str | None) -> bytes | None:
        """Remember one stretch; return the digest behind it, or None where it is no text.

        It is found by its own text, or by another one in which it is written.
        """
        if not stretch:
            return trail
        try:
            text = b"".join(map(self._tokenizer.token_bytes, stretch)).decode()
        except UnicodeDecodeError:
            return None
        key = behind(trail, text if written is None else written, control=False)
        with self._lock:
            before = self._found.pop(key, None)
            self._count += _weight(stretch) - (0 if before is None else _weight(before))
            self._found[key] = array("I", stretch)  # a tenth of what a tuple of numbers takes
            while self._count > self._most:
                self._count -= _weight(self._found.popitem(last=False)[1])
        return key


def _written(ends: Sequence[str | None], calls: Sequence[ToolCall]) -> dict[int, str]:
    """Return in which text each stretch of some calls is written, by its place among all.

    Args:
        ends: what ends each stretch of an answer.
        calls: all that were told of it; where its block has other parts, nothing is returned.
    """
    texts = list(written_calls(calls)) if calls else []
    places = [place + 1 for place, name in enumerate(ends) if name == DSML]
    if len(places) != len(texts) - 1 or places != list(range(places[0], places[-1] + 1)):
        return {}
    return dict(zip(places, texts[1:], strict=True))


def _weight(stretch: Sequence[int]) -> int:
    return OVERHEAD + len(stretch)
