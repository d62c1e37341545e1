"""The `deskside` command: what the user typed becomes options, and every ending an exit code.

Owns the commands, where a prompt comes from, how text is shown, and the one place where an error
turns into a line. Options are defined in config/. Torch and the model load only when a command
needs them, so that `--help` answers at once.
"""

import io
import json as jsonlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol

from cyclopts import App, CycloptsError, Parameter
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict

from deskside.client_cli import add_commands
from deskside.config.commands import ModelOptions, ProcessOptions, SamplingOptions
from deskside.config.engine import EngineOptions
from deskside.config.environment import (
    TorchrunPlace,
    from_environment,
    torchrun_place,
    wants_traceback,
)
from deskside.config.file import read_file
from deskside.config.server import ServerOptions
from deskside.errors import DesksideError, InputError
from deskside.report.help import HelpPage
from deskside.report.loading import Loading
from deskside.report.logs import show_logs
from deskside.report.terminal import as_json, rates_of, show
from deskside.text import utf8
from deskside.text.source import STDIN, read_prompt

if TYPE_CHECKING:
    from deskside.llm import LLM
    from deskside.planning.plan import Plan
    from deskside.report.doctor import Check
    from deskside.report.profile import Profiled

__all__ = ["Services", "main"]

MOST_SECONDS = 600
INTERRUPTED, TERMINATED, PIPE_CLOSED, INTERNAL, DOES_NOT_FIT = 130, 143, 141, 1, 3

EPILOGUE = (
    "Options from --model on are also variables (--kv-tokens: DESKSIDE_KV_TOKENS) and keys of the "
    "TOML file that --config names. A flag wins over a variable, a variable over the file."
)

Prompt = Annotated[str | None, Parameter(help="Text to continue.")]
Stdin = Annotated[
    bool, Parameter(name="-", negative="", help="Read the prompt from standard input.")
]
File = Annotated[
    Path | None,
    Parameter(allow_leading_hyphen=True, help="Read the prompt from a file; - is standard input."),
]
Quiet = Annotated[bool, Parameter(negative="", help="Print the generated text alone.")]
Seconds = Annotated[float, Parameter(help="How long each measurement takes.")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object.")]
Clean = Annotated[
    bool, Parameter(negative="", help="End and remove what runs of ours that are over have left.")
]
Flat = Parameter(name="*", negative="")
Model = Annotated[ModelOptions, Flat]
Engine = Annotated[EngineOptions, Flat]
Sampling = Annotated[
    SamplingOptions,
    Parameter(name="*", negative="", allow_leading_hyphen=True),  # a stop string may be "--"
]
Server = Annotated[ServerOptions, Flat]
Process = Annotated[ProcessOptions, Flat]
Progress = Callable[[int, int], None]


class Services(Protocol):
    """What the commands call; tests put something small in its place."""

    def open(
        self, model: str, options: EngineOptions, progress: Progress
    ) -> "AbstractContextManager[LLM]":
        """Load a checkpoint, and say how far it is: bytes read, and bytes in all."""
        ...

    def follow(self, place: TorchrunPlace, options: EngineOptions) -> None:
        """Be a rank that torchrun started and that does not lead, until it may leave."""
        ...

    def plan(self, model: str, options: EngineOptions) -> "Plan":
        """Say what a load would take, without one."""
        ...

    def profile(self, model: str, options: EngineOptions, seconds: float) -> "Profiled":
        """Measure this machine for a model's shapes."""
        ...

    def examine(self, model: str, options: EngineOptions) -> "tuple[Check, ...]":
        """Check this machine."""
        ...

    def clean(self) -> Iterable[str]:
        """Remove what runs that are over have left; say what was done."""
        ...

    def serve(self, model: str, engine: EngineOptions, options: ServerOptions) -> int:
        """Answer HTTP until a signal; return the exit code."""
        ...


class _Package:
    """The package itself, imported when it is called."""

    @contextmanager
    def open(self, model: str, options: EngineOptions, progress: Progress) -> "Iterator[LLM]":
        from deskside.llm import LLM
        from deskside.machine.binding import bound

        loaded = LLM.open(model, options, progress)
        with loaded as llm, bound(llm.placement.ranks[0].coordinator):
            yield llm  # this thread is the coordinator

    def follow(self, place: TorchrunPlace, options: EngineOptions) -> None:
        from deskside.runtime.follower import follow_torchrun

        follow_torchrun(place.master, options.rendezvous_timeout)

    def plan(self, model: str, options: EngineOptions) -> "Plan":
        from deskside.runtime.preview import preview

        return preview(model, options)

    def profile(self, model: str, options: EngineOptions, seconds: float) -> "Profiled":
        from deskside.runtime.profiling import profile

        return profile(model, options, seconds)

    def examine(self, model: str, options: EngineOptions) -> "tuple[Check, ...]":
        from deskside.runtime.examine import examine

        return examine(model, options)

    def clean(self) -> Iterable[str]:
        from deskside.runtime.leftovers import clean

        return clean()

    def serve(self, model: str, engine: EngineOptions, options: ServerOptions) -> int:
        from deskside.server.serve import serve

        return serve(model, engine, options)


def _unseen(_done: int, _total: int) -> None:
    """Take in a load's progress and show nothing."""


class _Terminated(BaseException):
    """SIGTERM arrived."""


def main(arguments: Sequence[str] | None = None, services: Services | None = None) -> int:
    """Run one command and return its exit code: the only place where faults become lines."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # text is UTF-8 in every locale
        with _terminable():
            code = _dispatch(words, _Package() if services is None else services)
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
    commands = _Commands(services)
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
    app.command(commands.run, sort_key=1)
    app.command(commands.plan, sort_key=2)
    app.command(commands.profile, sort_key=3)
    app.command(commands.doctor, sort_key=4)
    app.command(commands.serve, sort_key=5)
    add_commands(app)
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


@dataclass(frozen=True, slots=True)
class _Commands:
    """One method for each command; its signature is its command line."""

    services: Services

    def run(
        self,
        prompt: Prompt = None,
        /,
        *,
        stdin: Stdin = False,
        file: File = None,
        quiet: Quiet = False,
        json: AsJson = False,
        model: Model = ModelOptions(),  # noqa: B008 - frozen
        sampling: Sampling = SamplingOptions(),  # noqa: B008
        engine: Engine = EngineOptions(),  # noqa: B008
        process: Process = ProcessOptions(),  # noqa: B008
    ) -> int:
        """Continue a prompt: text as it comes, then one line with counts and rates."""
        if quiet and json:
            raise InputError("--quiet and --json exclude each other: give one of them")
        if self._follows(engine):
            return 0
        if stdin and file is not None:
            raise InputError("the prompt is given twice: use one of argument, --file and -")
        show_logs(verbose=process.verbose, debug=process.debug)
        text = read_prompt(prompt, STDIN if stdin else file, sys.stdin.buffer)
        params, out = sampling.params(), sys.stdout
        for stop in params.stop:
            utf8.to_bytes(stop, "--stop")  # known before a model is loaded
        with self._loaded(model.model, engine, shown=not quiet) as llm:
            result = show(
                llm.stream(text, params),
                None if json else out,
                close_line=not quiet or out.isatty(),
            )
            kv_tokens = llm.plan.kv_tokens
        if json:
            print(as_json(result, model.model, kv_tokens))  # noqa: T201
        elif not quiet:
            where = out if out.isatty() else sys.stderr
            print(rates_of(result).line(), file=where)
        return 0

    @contextmanager
    def _loaded(self, model: str, engine: EngineOptions, *, shown: bool) -> "Iterator[LLM]":
        with ExitStack() as stack:
            with Loading(sys.stderr) as loading:
                progress = loading if shown else _unseen
                llm = stack.enter_context(self.services.open(model, engine, progress))
            yield llm

    def plan(
        self,
        *,
        json: AsJson = False,
        model: Model = ModelOptions(),  # noqa: B008
        engine: Engine = EngineOptions(),  # noqa: B008
        process: Process = ProcessOptions(),  # noqa: B008
    ) -> int:
        """Say what a load takes, what the machine has and whether it fits, reading no weights."""
        plan = self.services.plan(model.model, engine)
        print(jsonlib.dumps(plan.to_json()) if json else plan.report())  # noqa: T201
        return 0 if plan.fits else DOES_NOT_FIT

    def profile(
        self,
        *,
        seconds: Seconds = 1.0,
        json: AsJson = False,
        model: Model = ModelOptions(),  # noqa: B008
        engine: Engine = EngineOptions(),  # noqa: B008
        process: Process = ProcessOptions(),  # noqa: B008
    ) -> int:
        """Measure how fast experts move here, keep it for later starts, and say what follows."""
        if not 0 < seconds <= MOST_SECONDS:
            raise InputError(f"--seconds must lie in (0, {MOST_SECONDS}], got {seconds:g}")
        from deskside.report.profile import profile_json, profile_lines

        found = self.services.profile(model.model, engine, seconds)
        print(jsonlib.dumps(profile_json(found)) if json else profile_lines(found))  # noqa: T201
        return 0

    def doctor(
        self,
        *,
        clean: Clean = False,
        json: AsJson = False,
        model: Model = ModelOptions(),  # noqa: B008
        engine: Engine = EngineOptions(),  # noqa: B008
        process: Process = ProcessOptions(),  # noqa: B008
    ) -> int:
        """Check this machine for a model: one row a subject, what it means and what helps."""
        from deskside.report import doctor

        if clean:
            done = list(self.services.clean()) or ["nothing was left behind"]
            print("\n".join(done))  # noqa: T201
            return 0
        checks = self.services.examine(model.model, engine)
        said = jsonlib.dumps(doctor.as_json(checks)) if json else "\n".join(doctor.as_lines(checks))
        print(said)  # noqa: T201
        return 0 if doctor.fit(checks) else DOES_NOT_FIT

    def serve(
        self,
        *,
        model: Model = ModelOptions(),  # noqa: B008
        server: Server = ServerOptions(),  # noqa: B008
        engine: Engine = EngineOptions(),  # noqa: B008
        process: Process = ProcessOptions(),  # noqa: B008
    ) -> int:
        """Answer OpenAI's HTTP API, for many clients at once."""
        if self._follows(engine):
            return 0
        return self.services.serve(model.model, engine, server)

    def _follows(self, engine: EngineOptions) -> bool:
        """Be one of torchrun's ranks that do not lead, to the end; false for all others."""
        place = torchrun_place()
        if place is None or place.rank == 0:
            return False
        self.services.follow(place, engine)
        return True
