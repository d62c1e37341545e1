"""The tools of a request for a response, as functions that the model is offered.

Owns which kinds are offered, and the names of those that come in a namespace: the model knows such
a function as `namespace.name`, a client by the two apart.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deskside.errors import InputError
from deskside.server.responses.items import CUSTOM_INPUT, full_name
from deskside.text.tools import Tool, read_tools

__all__ = ["CallName", "call_names", "chosen", "offered_tools"]

Item = Mapping[str, Any]
CallName = tuple[str | None, str]
"""The namespace of a function, if it has one, and its name therein."""

CUSTOM_SCHEMA = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
}

log = logging.getLogger("deskside.requests")


def offered_tools(items: Sequence[Item]) -> tuple[Tool, ...]:
    """Read the tools that can be offered; those that the other service would run are left out.

    Raises:
        InputError: one is no tool; names the entry.
    """
    found = []
    for space, item in _members(items):
        kind = item.get("type")
        if kind not in ("function", "custom"):
            log.info("a tool that is not offered: %s", repr(kind)[:100])
            continue
        names = ("description", "parameters")
        function = {name: item[name] for name in names if item.get(name) is not None}
        if kind == "custom":
            function["parameters"] = CUSTOM_SCHEMA
        about = (space or {}).get("description")
        if about:
            function["description"] = f"{about}\n{function.get('description', '')}".strip()
        found.append({"function": {"name": _full_name(space, item), **function}})
    return read_tools(found)


def call_names(items: Sequence[Item], kind: str) -> dict[str, CallName]:
    """Return how clients know the tools of a kind, by the names that the model knows."""
    return {
        str(_full_name(space, item)): (_name(space), str(item.get("name")))
        for space, item in _members(items)
        if item.get("type") == kind
    }


def chosen(choice: str | Item | None) -> str | Item | None:
    """Return a choice of tools in which a function has the name that the model knows."""
    if not isinstance(choice, Mapping):
        return choice
    return {**choice, "name": full_name(choice.get("namespace"), choice.get("name"))}


def _members(items: Sequence[Item]) -> Iterator[tuple[Item | None, Item]]:
    """Yield all tools, each with its namespace.

    Raises:
        InputError: a namespace holds no list of tools; names it.
    """
    for place, item in enumerate(items):
        if item.get("type") != "namespace":
            yield None, item
            continue
        where, members = f"tools[{place}]", item.get("tools")
        if not isinstance(item.get("name"), str) or not item["name"]:
            raise InputError(f"{where}.name must be text that is not empty")
        if not isinstance(members, list) or not all(isinstance(one, Mapping) for one in members):
            raise InputError(f"{where}.tools must be a list of tools")
        for member in members:
            yield item, member


def _full_name(space: Item | None, item: Item) -> object:
    return full_name(_name(space), item.get("name"))


def _name(space: Item | None) -> str | None:
    return None if space is None else str(space["name"])
