"""The help page: one aligned column of options, one of what they do. No boxes, no colours.

Fills the place that cyclopts has for a formatter, and knows nothing of the commands.
"""

import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

__all__ = ["HelpPage"]

LABEL_WIDTH = 26
SPELLINGS = {"INT": "N", "FLOAT": "X", "STR": "TEXT", "STR...": "TEXT"}
UNSAID_DEFAULTS = (None, "False", "()")


class HelpPage:
    """Formats a command's help: usage, what it does, its arguments and options."""

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Write one titled list."""
        if panel.entries:
            _write(console, f"{panel.title}:")
            for entry in panel.entries:
                said = _plain(console, entry.description)
                _write(console, _row(entry, said, console.width))
            _write(console, "")

    def render_usage(self, console: "Console", options: "ConsoleOptions", usage: Any) -> None:
        """Write the usage line."""
        _write(console, f"Usage: {_plain(console, usage)}\n")

    def render_description(
        self, console: "Console", options: "ConsoleOptions", description: Any
    ) -> None:
        """Write a paragraph."""
        _write(console, textwrap.fill(_plain(console, description), console.width) + "\n")


def _write(console: "Console", text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _plain(console: "Console", piece: Any) -> str:
    with console.capture() as taken:
        console.print(piece or "", highlight=False, markup=False)
    return " ".join(taken.get().split())


def _row(entry: "HelpEntry", said: str, width: int) -> str:
    value = "" if entry.positional_label else _value(entry)
    label = "  " + f"{', '.join(entry.display_labels)} {value}".rstrip()
    if entry.default not in UNSAID_DEFAULTS:
        said = f"{said} [{entry.default}]"
    lines = textwrap.wrap(said, max(width - LABEL_WIDTH - 2, 20)) or [""]
    break_ = "\n" + " " * (LABEL_WIDTH + 2)
    first = f"{label:<{LABEL_WIDTH}}  " if len(label) <= LABEL_WIDTH else label + break_
    return (first + break_.join(lines)).rstrip()


def _value(entry: "HelpEntry") -> str:
    """Return what stands for the value: `N|auto` for a number or a word, choices as they are."""
    words = (entry.metavar or "").split("|")
    choices = "|".join(entry.choices or ())
    return "|".join(choices if word == "CHOICE" else SPELLINGS.get(word, word) for word in words)
