"""Where a prompt's text comes from: an argument, a file, or standard input.

Owns the refusals: no prompt, two prompts, an unreadable file, bytes that are not UTF-8, nothing to
continue. Text is taken as it is; no newline is added or dropped.
"""

from pathlib import Path
from typing import BinaryIO

from deskside.errors import InputError
from deskside.text import utf8

__all__ = ["STDIN", "read_prompt"]

STDIN = Path("-")
"""The file name that means standard input."""


def read_prompt(argument: str | None, file: Path | None, stdin: BinaryIO) -> str:
    """Return the text of the one source that is given.

    Raises:
        InputError: none or both are given, or what is there cannot be a prompt.
    """
    if argument is not None and file is not None:
        raise InputError("the prompt is given twice: use one of argument, --file and -")
    if argument is not None:
        utf8.to_bytes(argument, "the prompt")
        return _filled(argument, "the prompt")
    if file is None:
        raise InputError("no prompt: give it as an argument, with --file PATH, or - for stdin")
    if file == STDIN:
        return _filled(utf8.from_bytes(stdin.read(), "standard input"), "standard input")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"--file {file}: cannot be read ({error.strerror})") from error
    return _filled(utf8.from_bytes(data, str(file)), str(file))


def _filled(text: str, what: str) -> str:
    if not text:
        raise InputError(f"{what} is empty: there is nothing to continue")
    return text
