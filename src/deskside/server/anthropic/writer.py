"""An answer as blocks of Anthropic's API, and the events that build them up.

Owns the order: a block begins, grows and ends before the next one begins. A whole answer is what
its events add up to, because the same steps make both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deskside.server.service import new_id
from deskside.text.answer import Part
from deskside.text.reasoning import Channel
from deskside.text.tools import ToolCall

__all__ = ["BlockWriter", "Event"]

Event = tuple[str, Mapping[str, Any]]
"""A name and a body."""


@dataclass(slots=True)
class BlockWriter:
    """The blocks of one answer, as they grow."""

    blocks: list[dict[str, Any]] = field(default_factory=list)
    _open: Channel | None = None

    def add(self, parts: Sequence[Part]) -> list[Event]:
        """Take in what a step brought; return its events."""
        events: list[Event] = []
        for part in parts:
            events += self._call(part) if isinstance(part, ToolCall) else self._text(*part)
        return events

    def end(self) -> list[Event]:
        """End the block that is open, if one is."""
        if self._open is None:
            return []
        self._open = None
        return [_event("content_block_stop", index=len(self.blocks) - 1)]

    def _text(self, channel: Channel, text: str) -> list[Event]:
        kind = "thinking" if channel is Channel.REASONING else "text"
        events: list[Event] = []
        if self._open is not channel:
            extra = {"signature": ""} if kind == "thinking" else {}
            events = [*self.end(), self._begin({"type": kind, kind: "", **extra})]
            self._open = channel
        self.blocks[-1][kind] += text
        return [*events, self._delta({"type": f"{kind}_delta", kind: text})]

    def _call(self, call: ToolCall) -> list[Event]:
        ended = self.end()
        name = new_id("toolu", "_")
        block = {"type": "tool_use", "id": name, "name": call.name, "input": {}}
        begun = self._begin(block)
        self.blocks[-1]["input"] = json.loads(call.arguments)
        delta = self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        return [*ended, begun, delta, _event("content_block_stop", index=len(self.blocks) - 1)]

    def _begin(self, block: dict[str, Any]) -> Event:
        self.blocks.append(dict(block))
        return _event("content_block_start", index=len(self.blocks) - 1, content_block=block)

    def _delta(self, delta: Mapping[str, Any]) -> Event:
        return _event("content_block_delta", index=len(self.blocks) - 1, delta=delta)


def _event(name: str, **body: Any) -> Event:
    return name, {"type": name, **body}
