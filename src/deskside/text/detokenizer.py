"""Token ids to text, a few at a time.

Owns the bytes of a character that is not whole yet. Whatever way the tokens are cut into feeds,
the pieces add up to the text of all tokens at once. Knows no stop rules.
"""

import codecs
from collections.abc import Iterable

from deskside.text.tokenizer import TokenBytes

__all__ = ["Detokenizer"]


class Detokenizer:
    """Turns tokens into whole characters as they come; use one for each text."""

    __slots__ = ("_bytes_of", "_decoder")

    def __init__(self, bytes_of: TokenBytes) -> None:
        """Take the bytes of each token from `bytes_of`, such as `Tokenizer.text_bytes`."""
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, tokens: Iterable[int]) -> str:
        """Return the characters that `tokens` complete, and keep the bytes of a partial one."""
        return self.feed_bytes(b"".join(map(self._bytes_of, tokens)))

    def feed_bytes(self, data: bytes) -> str:
        """Return the characters that `data` completes."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """End the text: bytes that never became a character are shown as U+FFFD."""
        return self._decoder.decode(b"", final=True)
