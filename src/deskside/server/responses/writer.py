"""An answer as items of a response, and the events that build them up.

Owns the order: an item is added, grows and is done before the next one is added. A whole response
is what its events add up to, because the same steps make both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deskside.server.responses.items import CUSTOM_INPUT, sealed
from deskside.server.responses.offer import CallName
from deskside.server.service import new_call_id, new_id
from deskside.text.answer import Part
from deskside.text.reasoning import Channel
from deskside.text.tools import ToolCall

__all__ = ["Event", "ItemWriter"]

Event = dict[str, Any]
"""A body; its type is its name."""

KINDS = {Channel.REASONING: "reasoning_text", Channel.CONTENT: "output_text"}


@dataclass(slots=True)
class ItemWriter:
    """The items of one answer, as they grow."""

    functions: Mapping[str, CallName] = field(default_factory=dict)
    """How the client knows its functions, by the names that the model knows."""
    custom: Mapping[str, CallName] = field(default_factory=dict)
    """The same of tools whose calls are texts."""
    seals: bool = False
    items: list[dict[str, Any]] = field(default_factory=list)
    _open: Channel | None = None
    _text: str = ""

    def add(self, parts: Sequence[Part]) -> list[Event]:
        """Take in what a step brought; return its events."""
        events: list[Event] = []
        for part in parts:
            if not isinstance(part, ToolCall):
                events += self._grow(*part)
            elif part.name in self.custom:
                events += self._custom(part)
            else:
                events += self._call(part)
        return events

    def end(self, status: str = "completed") -> list[Event]:
        """End the item that is open, if one is."""
        if self._open is None:
            return []
        kind, item, text = KINDS[self._open], self.items[-1], self._text
        part = _part(kind, text)
        item.update(status=status, content=[part])
        if self._open is Channel.REASONING and self.seals:
            item["encrypted_content"] = sealed(text)
        self._open, self._text = None, ""
        extra: Event = {"logprobs": []} if kind == "output_text" else {}
        return [
            self._inside(f"response.{kind}.done", text=text, **extra),
            self._inside("response.content_part.done", part=part),
            self._item("response.output_item.done", item),
        ]

    def _grow(self, channel: Channel, text: str) -> list[Event]:
        kind = KINDS[channel]
        events: list[Event] = []
        if self._open is not channel:
            events = [*self.end(), *self._begin(channel)]
        self._text += text
        extra: Event = {"logprobs": []} if kind == "output_text" else {}
        return [*events, self._inside(f"response.{kind}.delta", delta=text, **extra)]

    def _begin(self, channel: Channel) -> list[Event]:
        self._open = channel
        if channel is Channel.REASONING:
            item = {"id": new_id("rs", "_"), "type": "reasoning", "summary": []}
        else:
            item = {"id": new_id("msg", "_"), "type": "message", "role": "assistant"}
        added = self._add({**item, "status": "in_progress", "content": []})
        part = _part(KINDS[channel], "")
        return [added, self._inside("response.content_part.added", part=part)]

    def _call(self, call: ToolCall) -> list[Event]:
        item = {"id": new_id("fc", "_"), "type": "function_call", "call_id": new_call_id()}
        item |= _named(*self.functions.get(call.name, (None, call.name)))
        return self._whole(item, "arguments", call.arguments)

    def _custom(self, call: ToolCall) -> list[Event]:
        said = json.loads(call.arguments).get(CUSTOM_INPUT, "")
        item = {"id": new_id("ctc", "_"), "type": "custom_tool_call", "call_id": new_call_id()}
        text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        return self._whole(item | _named(*self.custom[call.name]), "input", text)

    def _whole(self, item: dict[str, Any], name: str, value: str) -> list[Event]:
        """Add an item whose one text comes at once."""
        ended = self.end()
        added = self._add({**item, name: "", "status": "in_progress"})
        done = self.items[-1]
        done.update({name: value, "status": "completed"})
        kind = "custom_tool_call_input" if name == "input" else "function_call_arguments"
        extra = {} if name == "input" else {"name": item["name"]}
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        return [
            *ended,
            added,
            {"type": f"response.{kind}.delta", **place, "delta": value},
            {"type": f"response.{kind}.done", **place, name: value, **extra},
            self._item("response.output_item.done", done),
        ]

    def _add(self, item: dict[str, Any]) -> Event:
        self.items.append(item)
        return self._item("response.output_item.added", item)

    def _item(self, name: str, item: Mapping[str, Any]) -> Event:
        return {"type": name, "output_index": len(self.items) - 1, "item": dict(item)}

    def _inside(self, name: str, **body: Any) -> Event:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": name, **place, "content_index": 0, **body}


def _named(space: str | None, name: str) -> dict[str, str]:
    return {"name": name} if space is None else {"namespace": space, "name": name}


def _part(kind: str, text: str) -> dict[str, Any]:
    extra: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": text, **extra}
