"""The `deskside` command: what the user typed becomes options, and every ending an exit code.

Owns how words, variables and a file are put together, and the one place where an error turns into
a line. The commands stand in model_cli.py and client_cli.py, options in config/.
"""

import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from cyclopts import App, CycloptsError
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict

from deskside import client_cli, model_cli
from deskside.config.environment import from_environment, wants_traceback
from deskside.config.file import read_file
from deskside.errors import DesksideError, InputError
from deskside.report.help import HelpPage
from deskside.services import Services, package

__all__ = ["main"]

INTERRUPTED, TERMINATED, PIPE_CLOSED, INTERNAL = 130, 143, 141, 1

EPILOGUE = (
    "Options from --model on are also variables (--kv-tokens: DESKSIDE_KV_TOKENS) and keys of the "
    "TOML file that --config names. A flag wins over a variable, a variable over the file."
)


class _Terminated(BaseException):
    """SIGTERM arrived."""


def main(arguments: Sequence[str] | None = None, services: Services | None = None) -> int:
    """Run one command and return its exit code: the only place where faults become lines."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # text is UTF-8 in every locale
        with _terminable():
            code = _dispatch(words, package() if services is None else services)
            sys.stdout.flush()
            return code
    except DesksideError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except _Terminated:
        return TERMINATED
    except BrokenPipeError:  # the reader left, as `head` does; the interpreter must not flush again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as fault:
        if wants_traceback(words):
            traceback.print_exc()
        kind = type(fault).__name__
        return _fail(f"internal fault: {kind}: {fault} (--debug shows where)", INTERNAL)


def _fail(message: str, code: int) -> int:
    print(f"deskside: error: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return code


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that everything opened is closed."""

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _dispatch(words: Sequence[str], services: Services) -> int:
    app = App(
        name="deskside",
        help="Serve a large Mixture-of-Experts checkpoint from the workstation beside your desk.",
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        help_formatter=HelpPage(),
        version=_version,
        config=_apply_settings,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    model_cli.add_commands(app, services)
    client_cli.add_commands(app)
    try:
        result = app(words, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise InputError(str(error)) from error
    return result if isinstance(result, int) else 0


def _version() -> str:
    from deskside.report.version import describe

    return describe()


def _apply_settings(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill in what no flag gave: from the environment, then from the file that --config names."""
    for variable, values in from_environment().items():
        _apply(dict(values), variable, app, commands, arguments)
    for argument in arguments:
        if argument.name == "--config" and argument.tokens:
            path = Path(argument.tokens[0].value)
            _apply(dict(read_file(path)), str(path), app, commands, arguments)


def _apply(
    values: dict[str, str | list[str]],
    source: str,
    app: App,
    commands: tuple[str, ...],
    arguments: ArgumentCollection,
) -> None:
    # Unknown keys are options of another command: read_file has refused those of none. They stand
    # below the command's name, for a flat table would lose every key that names a command.
    nested: dict[str, Any] = dict(values)
    for name in reversed(commands):
        nested = {name: nested}
    Dict(nested, source=source, allow_unknown=True)(app, commands, arguments)
