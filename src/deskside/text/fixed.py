"""The fixed texts of a chat format, from a checkpoint's own encoder file.

The format of DeepSeek-V4 is published as a program. Owns the reading of that program's constants as
literals: it is parsed and never executed, and what is no plain text is not followed. Knows not
where in a prompt the texts go.
"""

import ast
import string
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deskside.errors import CheckpointError, InputError

__all__ = ["FILE", "FixedTexts"]

FILE = Path("encoding", "encoding_dsv4.py")
"""Where the encoder lies in a checkpoint folder."""

EFFORTS = "REASONING_EFFORT_PROMPTS"
DEFAULT = "DEFAULT_REASONING_EFFORT"
THINKING = "DEFAULT_THINKING"
"""Ours, not the published program's: whether a model thinks that is asked for neither."""
PREVIEW = "REASONING_EFFORT_MAX"
TOOLS = "TOOLS_TEMPLATE"
SCHEMAS = "tool_schemas"
FORM = "response_format_template"
MARKERS = {
    "dsml_token": "｜DSML｜",
    "thinking_start_token": "<think>",
    "thinking_end_token": "</think>",
}
"""What stands for the markers in the text about tools; the format's own names."""
MOST_BYTES = 1 << 18
"""The published program is far smaller."""
MOST_TEXT = 1 << 14
"""Characters of one text; the longest published one has 526."""
AGAIN = "get the file again"


@dataclass(frozen=True, slots=True)
class FixedTexts:
    """What an encoder file says; without one, low effort alone, which needs no text."""

    where: str
    """The file, as messages name it."""
    efforts: Mapping[str, str] = field(default_factory=lambda: {"low": ""})
    """What each effort puts before everything else."""
    default: str = "low"
    lack: str = "is missing"
    """Why an effort that is not there is not there."""
    tools: tuple[str, str] | None = None
    """What stands before and behind the list of tools, if the file says it."""
    form: tuple[str, str] | None = None
    """What stands before and behind the schema of an answer, if the file says it."""
    thinks: bool = True
    """Whether the model thinks unless a request says."""

    @staticmethod
    def open(folder: Path) -> "FixedTexts":
        """Read the encoder file of a checkpoint, if it has one.

        Raises:
            CheckpointError: it cannot be read, is no Python, or its texts are no plain texts.
        """
        path = folder / FILE
        if not path.exists() and not path.is_symlink():
            return FixedTexts(str(path))
        values = _constants(_source(folder, path), str(path))
        tools = _around_tools(values[TOOLS], str(path)) if TOOLS in values else None
        form = _around_form(values[FORM], str(path)) if FORM in values else None
        thinks = _switch(values.get(THINKING), str(path), THINKING)
        if EFFORTS not in values:
            lack = (
                "is that of the preview; get the 0731 checkpoint's"
                if PREVIEW in values
                else f"has no {EFFORTS}"
            )
            return FixedTexts(str(path), lack=lack, thinks=thinks, tools=tools, form=form)
        efforts = _efforts(values[EFFORTS], str(path))
        default = _text(values.get(DEFAULT), str(path), DEFAULT)
        if default not in efforts:
            raise CheckpointError(
                f"{path}: {DEFAULT} is {default!r:.60}, which {EFFORTS} lacks; {AGAIN}"
            )
        lack = "does not have it"
        return FixedTexts(str(path), efforts, default, lack, thinks=thinks, tools=tools, form=form)

    def effort(self, name: str | None) -> str:
        """Return what an effort (None: the checkpoint's default) puts before the conversation.

        Raises:
            InputError: the text is not there.
        """
        name = self.default if name is None else name
        if name not in self.efforts:
            raise InputError(
                f"reasoning effort {name} needs a text of {self.where}, which {self.lack}; "
                f"use one of {', '.join(self.efforts)}"
            )
        return self.efforts[name]

    def around_tools(self) -> tuple[str, str]:
        """Return what stands before and behind the list of tools.

        Raises:
            InputError: the texts are not there.
        """
        if self.tools is None:
            lack = "is missing" if self.lack == "is missing" else f"has no {TOOLS}"
            raise InputError(f"tools need a text of {self.where}, which {lack}; send none")
        return self.tools


def _source(folder: Path, path: Path) -> str:
    """Read the file, which must lie in the folder itself."""
    try:
        real = path.resolve(strict=True)
        if folder.resolve() not in real.parents:
            raise CheckpointError(
                f"{path}: the link leads outside the folder, to {real}; copy the file itself"
            )
        if not real.is_file():
            raise CheckpointError(f"{path}: is no regular file; {AGAIN}")
        size = real.stat().st_size
        if size > MOST_BYTES:
            raise CheckpointError(f"{path}: has {size} bytes, most is {MOST_BYTES}; {AGAIN}")
        return real.read_bytes().decode("utf-8")
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its links go in a circle"
        raise CheckpointError(f"{path}: cannot be read ({reason}); {AGAIN}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: is not UTF-8 (byte {error.start}); {AGAIN}") from error


def _constants(source: str, where: str) -> dict[str, ast.expr]:
    """Return the right sides of the assignments at the top, by name; the names of interest once."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings that nobody here reads
            body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise CheckpointError(f"{where}: is not Python ({reason:.80}); {AGAIN}") from error
    found: dict[str, ast.expr] = {}
    for statement in body:
        target, value = _assignment(statement)
        if target not in (EFFORTS, DEFAULT, PREVIEW, THINKING, TOOLS, FORM) or value is None:
            continue
        if target in found:
            raise CheckpointError(f"{where}: {target} stands twice; {AGAIN}")
        found[target] = value
    return found


def _assignment(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    """Return name and value of `name = value` or `name: type = value`; else an empty name."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return "", None
    return (target.id, statement.value) if isinstance(target, ast.Name) else ("", None)


def _efforts(value: ast.expr, where: str) -> dict[str, str]:
    if not isinstance(value, ast.Dict):
        raise CheckpointError(f"{where}: {EFFORTS} must be a dict of plain texts; {AGAIN}")
    names = [_text(key, where, f"a key of {EFFORTS}") for key in value.keys]
    texts = [_text(text, where, f"a text of {EFFORTS}") for text in value.values]
    if not names or len(set(names)) < len(names):
        raise CheckpointError(f"{where}: {EFFORTS} must have keys, each once; {AGAIN}")
    return dict(zip(names, texts, strict=True))


def _around_tools(value: ast.expr, where: str) -> tuple[str, str]:
    """Return the text about tools, cut where their list belongs, with the markers put in."""
    sides = [""]
    try:
        for plain, name, spec, conversion in string.Formatter().parse(_text(value, where, TOOLS)):
            sides[-1] += plain
            if name is None:
                continue
            if spec or conversion or name not in (SCHEMAS, *MARKERS):
                raise ValueError(f"{name!r:.40} is not known")
            if name == SCHEMAS:
                sides.append("")
            else:
                sides[-1] += MARKERS[name]
    except ValueError as error:
        raise CheckpointError(
            f"{where}: {TOOLS} is no template ({error!s:.60}); {AGAIN}"
        ) from error
    if len(sides) != 2:
        raise CheckpointError(f"{where}: {TOOLS} must name {SCHEMAS} once; {AGAIN}")
    return sides[0], sides[1]


def _around_form(value: ast.expr, where: str) -> tuple[str, str]:
    """Return the text about the form of an answer, cut where its one field, the schema, belongs."""
    try:
        parts = list(string.Formatter().parse(_text(value, where, FORM)))
    except ValueError as error:
        raise CheckpointError(f"{where}: {FORM} is no template ({error!s:.60}); {AGAIN}") from error
    fields = [part[1:] for part in parts if part[1] is not None]
    if len(fields) != 1 or not str(fields[0][0]).isidentifier() or any(fields[0][1:]):
        raise CheckpointError(f"{where}: {FORM} must have one field, the schema; {AGAIN}")
    behind = next(place for place, part in enumerate(parts) if part[1] is not None) + 1
    plain = [part[0] for part in parts]
    return "".join(plain[:behind]), "".join(plain[behind:])


def _switch(value: ast.expr | None, where: str, what: str) -> bool:
    """Return True or False as it stands there; True where nothing does."""
    if value is None:
        return True
    if not isinstance(value, ast.Constant) or not isinstance(value.value, bool):
        raise CheckpointError(f"{where}: {what} must be True or False; {AGAIN}")
    return value.value


def _text(value: ast.expr | None, where: str, what: str) -> str:
    """Return a plain text; a call, a name, a sum or an f-string is none."""
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
        raise CheckpointError(f"{where}: {what} must be a plain text; {AGAIN}")
    text = value.value
    if len(text) > MOST_TEXT or any("\ud800" <= character <= "\udfff" for character in text):
        raise CheckpointError(
            f"{where}: {what} must be valid text of at most {MOST_TEXT} characters; {AGAIN}"
        )
    return text
