"""How many patterns of a JSON schema must hold for one text at the same time.

The library that follows grammars needs time that doubles with each of them, and has no bound of its
own on it. Everything else in a schema it judges, and bounds, itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from deskside.errors import InputError

__all__ = ["MOST_PATTERNS", "check_patterns"]

MOST_PATTERNS = 8
DEEPEST = 200
PATTERNS = ("pattern", "format", "patternProperties", "multipleOf")
DATA = ("enum", "const", "default", "examples")
"""Keywords whose values are no schemas."""


def check_patterns(schema: Mapping[str, Any]) -> None:
    """Refuse a schema whose `allOf` brings too many patterns together.

    Raises:
        InputError: it does, or refers to something in another way than by its path.
    """
    if _Count(schema).of(schema, DEEPEST) > MOST_PATTERNS:
        raise InputError(f"allOf brings more than {MOST_PATTERNS} patterns together; ask for fewer")


class _Count:
    """Counts in one schema; what is referred to is counted once, and within itself as nothing."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[str, int] = {"#": 0}

    def of(self, part: Any, deepest: int) -> int:
        """Return at least as many patterns as can meet in one text of a part.

        Raises:
            InputError: the part nests too deeply, or refers to something otherwise than by path.
        """
        if deepest == 0:
            raise InputError(f"the schema nests more than {DEEPEST} parts")
        if not isinstance(part, Mapping):
            return max((self.of(one, deepest - 1) for one in _items(part)), default=0)
        met = int(any(key in part for key in PATTERNS))
        inside = 0
        for key, value in part.items():
            if key == "allOf":
                met += sum(self.of(one, deepest - 1) for one in _items(value))
            elif key == "$ref" and isinstance(value, str):
                met += self._behind(value, deepest - 1)
            elif key not in DATA:
                inside = max(inside, self.of(value, deepest - 1))
        return met + inside

    def _behind(self, pointer: str, deepest: int) -> int:
        if pointer not in self._known:
            if not pointer.startswith("#/"):
                raise InputError(f"$ref must be a path that begins with #, got {pointer!r:.60}")
            self._known[pointer] = 0
            self._known[pointer] = self.of(self._at(pointer), deepest)
        return self._known[pointer]

    def _at(self, pointer: str) -> Any:
        """Return what a path leads to; one that leads nowhere is refused by the library."""
        found: Any = self._root
        for name in unquote(pointer[2:]).split("/"):
            key = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(key)
            elif isinstance(found, list) and key.isdigit() and int(key[:9]) < len(found):
                found = found[int(key[:9])]
            else:
                return None
        return found


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        yield from value
