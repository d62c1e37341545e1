"""Generated text as text and calls, told apart as it comes.

Owns the grammar of a block of calls in DSML. A call is told when its end is there, whole. What
begins like a block and is none is text like any other: nothing is lost and no call is made up.
Whatever way the text is cut into feeds, the outcome is the same. Knows no reasoning.
"""

import json
import math
import re
from typing import NoReturn

from deskside.text.tools import DSML, OPEN, ToolCall

__all__ = ["ToolReader"]

CLOSE = f"</{DSML}tool_calls>"
INVOKE, END_INVOKE = f'<{DSML}invoke name="', f"</{DSML}invoke>"
PARAMETER, END_PARAMETER = f'<{DSML}parameter name="', f"</{DSML}parameter>"
INVOKE_REST = re.compile(r'([^"\n]+)">')
PARAMETER_REST = re.compile(r'([^\n]*?)" string="(true|false)">')
QUOTE = re.compile(r"""\\.|(?P<quote>")""", re.DOTALL)
"""An escape in JSON, or what begins or ends a text."""
LONGEST_TAG = 1024
"""Characters of a name with what follows it, up to the end of the tag."""
BLANK = " \t\r\n"
BREAK = "\n\n"
"""Stands before a block and is no text."""


class _Short(Exception):  # noqa: N818 - nothing is wrong
    """More text must come before anything can be said."""


class _Broken(Exception):  # noqa: N818 - it is what the text is
    """This is no block of calls."""


class ToolReader:
    """Splits one text into pieces of text and calls."""

    __slots__ = ("_block", "_text")

    def __init__(self) -> None:
        self._text = ""
        """What is not told yet: of a block all behind its opening or its last whole call."""
        self._block: _Block | None = None

    def feed(self, text: str) -> list[str | ToolCall]:
        """Return what `text` makes certain, in order, without empty pieces.

        Held back is what may be the beginning of a block, and a call without its end.
        """
        self._text += text
        return self._read()

    def finish(self) -> list[str | ToolCall]:
        """End the text: what was held back is text, except for markup behind whole calls."""
        found: list[str | ToolCall] = []
        while self._block is not None:
            if self._block.told and self._block.hides(self._text):
                self._text, self._block = "", None
            else:
                found += self._give_up(self._block) + self._read()
        rest, self._text = self._text, ""
        return _joined([*found, *([rest] if rest else [])])

    def _read(self) -> list[str | ToolCall]:
        found: list[str | ToolCall] = []
        while True:
            if self._block is None:
                found += self._outside()
                if self._block is None:
                    return _joined(found)
            try:
                call = self._block.next(self._text)
            except _Short:
                return _joined(found)
            except _Broken:
                found += self._give_up(self._block)
                continue
            self._text = self._text[self._block.read :]
            self._block.read = 0
            if call is None:
                self._block = None
            else:
                found.append(call)

    def _outside(self) -> list[str | ToolCall]:
        """Read text up to the beginning of a block."""
        start = self._text.find(OPEN)
        if start >= 0:
            shown = self._text[:start]
            shown = shown[: len(shown) - _breaks(shown)]
            lead = self._text[len(shown) : start + len(OPEN)]
            self._text = self._text[start + len(OPEN) :]
            self._block = _Block(lead)
            return [shown] if shown else []
        certain = len(self._text) - _beginning(self._text)
        shown, self._text = self._text[:certain], self._text[certain:]
        return [shown] if shown else []

    def _give_up(self, block: "_Block") -> list[str | ToolCall]:
        """Take the block for text, which is read again from behind what opened it.

        Behind whole calls only the rest is text: the opening was theirs.
        """
        self._block = None
        return [] if block.told else [block.lead]


class _Block:
    """What stands behind an opening tag. `read` says how far the text given to `next` is used."""

    __slots__ = (
        *("_from", "_name", "_parameters", "_quoted", "_value", "_value_start"),
        *("lead", "read", "told"),
    )

    def __init__(self, lead: str) -> None:
        self.lead = lead
        self.read = 0
        self.told = 0
        """Calls that were told."""
        self._reset()

    def _reset(self) -> None:
        self._name = ""
        self._parameters: dict[str, str] = {}
        self._value: tuple[str, bool] | None = None
        self._value_start = 0
        self._quoted = 0, False
        """Of a value in JSON: up to where it was looked at, and whether a text is open there."""
        self._from = 0

    def hides(self, rest: str) -> bool:
        """Whether the rest of a text is markup that only closes what is told already."""
        return CLOSE.startswith(rest.strip(BLANK))

    def next(self, text: str) -> ToolCall | None:
        """Return the next call, or None at the end of the block.

        Raises:
            _Short: the text ends within it; the next one must begin with this one.
            _Broken: it is none.
        """
        while True:
            if self._value is not None:
                self._end_value(text)
            elif self._name:
                if self._tag(text, (PARAMETER, END_INVOKE)) == END_INVOKE:
                    return self._call()
                self._begin_value(text)
            else:
                tags = (INVOKE, CLOSE) if self.told else (INVOKE,)
                if self._tag(text, tags) == CLOSE:
                    return None
                match = self._match(text, INVOKE_REST)
                self._name, self._from = match[1], self.read

    def _tag(self, text: str, tags: tuple[str, ...]) -> str:
        """Read one of the tags behind white space; nothing is read where it is not whole."""
        start = self.read
        while start < len(text) and text[start] in BLANK:
            start += 1
        rest = text[start : start + LONGEST_TAG]
        for tag in tags:
            if rest.startswith(tag):
                self._from, self.read = self.read, start + len(tag)
                return tag
        if any(tag.startswith(rest) for tag in tags):
            raise _Short
        raise _Broken

    def _match(self, text: str, pattern: "re.Pattern[str]") -> "re.Match[str]":
        """Read the rest of a tag; where it is not whole, the tag's beginning is unread."""
        line = text[self.read : self.read + LONGEST_TAG]
        match = pattern.match(line)
        if match is not None:
            self.read += match.end()
            return match
        if (
            "\n" in line
            or len(line) == LONGEST_TAG
            or (pattern is INVOKE_REST and '"' in line[:-1])
        ):
            raise _Broken
        self.read = self._from
        raise _Short

    def _begin_value(self, text: str) -> None:
        match = self._match(text, PARAMETER_REST)
        if match[1] in self._parameters:
            raise _Broken
        self._value = match[1], match[2] == "true"
        self._value_start = self._from = self.read
        self._quoted = self.read, False

    def _end_value(self, text: str) -> None:
        assert self._value is not None
        while True:
            end = text.find(END_PARAMETER, self._from)
            if end < 0:
                self._from = max(self._from, len(text) - len(END_PARAMETER) + 1)
                raise _Short
            self._from = end
            if self._ends(text, end):
                break
            self._from += len(END_PARAMETER)
        key, literal = self._value
        value = text[self._value_start : end]
        self._parameters[key] = _json(value, literal)
        self._value, self.read = None, end + len(END_PARAMETER)

    def _ends(self, text: str, end: int) -> bool:
        """Whether the closing tag at `end` ends the value: within a text in JSON it does not.

        No such text holds a line break, so where one follows the tag, no text goes on.
        """
        assert self._value is not None
        if self._value[1]:
            return True
        start, quoted = self._quoted
        for found in QUOTE.finditer(text, start, end):
            quoted ^= found["quote"] is not None
        self._quoted = end, quoted
        behind = end + len(END_PARAMETER)
        if quoted and behind == len(text):
            raise _Short
        return not quoted or text[behind] == "\n"

    def _call(self) -> ToolCall:
        said = ", ".join(
            f"{json.dumps(key, ensure_ascii=False)}: {value}"
            for key, value in self._parameters.items()
        )
        call = ToolCall(self._name, f"{{{said}}}")
        self.told += 1
        self._reset()
        return call


def _json(value: str, literal: bool) -> str:
    """Return a value as JSON: what claims to be JSON and is none is a text after all."""
    if not literal:
        try:
            json.loads(value, parse_constant=_refuse, parse_float=_finite)
        except (ValueError, RecursionError):
            pass
        else:
            return value.strip(BLANK)
    return json.dumps(value, ensure_ascii=False)


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits)


def _breaks(text: str) -> int:
    """Return how many characters at the end of `text` only set a block apart."""
    return next((n for n in (2, 1) if text.endswith(BREAK[:n])), 0)


def _beginning(text: str) -> int:
    """Return how many characters at the end of `text` may begin a block."""
    most = min(len(text), len(OPEN) - 1)
    tag = next((n for n in range(most, 0, -1) if text.endswith(OPEN[:n])), 0)
    return tag + _breaks(text[: len(text) - tag])


def _joined(found: list[str | ToolCall]) -> list[str | ToolCall]:
    """Join texts that stand side by side."""
    joined: list[str | ToolCall] = []
    for piece in found:
        last = joined[-1] if joined else None
        if isinstance(piece, str) and isinstance(last, str):
            joined[-1] = last + piece
        elif piece:
            joined.append(piece)
    return joined
