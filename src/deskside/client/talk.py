"""A conversation from this side: what was said, how to go on, and one answer as it comes.

Knows no terminal.
"""

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from deskside.client.peer import Peer

__all__ = ["Counts", "Talk"]


@dataclass(slots=True)
class Counts:
    """What an answer took."""

    tokens: int = 0
    reasoning: int = 0
    seconds: float = 0.0
    finish: str = ""

    def line(self) -> str:
        """Return it in a few words."""
        rate = f", {self.tokens / self.seconds:.1f} tok/s" if self.seconds else ""
        thought = f" ({self.reasoning} of thought)" if self.reasoning else ""
        cut = ", cut at the limit" if self.finish == "length" else ""
        return f"{self.tokens} tokens{thought}{rate}{cut}"


@dataclass(slots=True)
class Talk:
    """A conversation with one service."""

    peer: Peer
    system: str = ""
    temperature: float | None = None
    thinks: bool = True
    said: list[dict[str, str]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    """Of the last answer that came to its end."""

    def reset(self) -> None:
        """Forget what was said."""
        self.said.clear()

    def ask(self, text: str) -> Generator[tuple[str, str], None, None]:
        """Yield an answer piece by piece, `reasoning` or `content` and a text.

        What came is remembered, also where the iterator is closed before the end. A question that
        got no word of an answer is forgotten.

        Raises:
            InputError: the service refuses, or its answer breaks off.
        """
        self.said.append({"role": "user", "content": text})
        found = {"reasoning": "", "content": ""}
        stream = self.peer.events("/v1/chat/completions", self._body())
        self.counts = Counts()
        try:
            yield from self._pieces(stream, found)
        finally:
            stream.close()
            if any(found.values()):
                answer = {"role": "assistant", "content": found["content"]}
                thought = {"reasoning": found["reasoning"]} if found["reasoning"] else {}
                self.said.append({**answer, **thought})
            else:
                self.said.pop()

    def _pieces(self, stream: Iterator[Any], found: dict[str, str]) -> Iterator[tuple[str, str]]:
        first: float | None = None
        for event in stream:
            for choice in event["choices"]:
                self.counts.finish = choice.get("finish_reason") or self.counts.finish
                for kind in found:
                    text = choice["delta"].get(kind)
                    if text:
                        first = first or time.monotonic()
                        found[kind] += text
                        yield kind, text
            usage = event.get("usage")
            if usage:
                self.counts.tokens = usage["completion_tokens"]
                self.counts.reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
                self.counts.seconds = time.monotonic() - (first or time.monotonic())

    def _body(self) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {
            "messages": [*system, *self.said],
            "thinking": {"type": "enabled" if self.thinks else "disabled"},
            "stream_options": {"include_usage": True},
        }
        return body if self.temperature is None else {**body, "temperature": self.temperature}
