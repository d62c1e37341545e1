"""The commands around a model: run, plan, profile, doctor, serve.

Owns where a prompt comes from and how a result is shown. Options are defined in config/.
"""

import json as jsonlib
import sys
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from deskside.config.commands import ModelOptions, ProcessOptions, SamplingOptions
from deskside.config.engine import EngineOptions
from deskside.config.environment import torchrun_place
from deskside.config.server import ServerOptions
from deskside.core import RankLoad
from deskside.errors import InputError
from deskside.report.loading import Loading
from deskside.report.logs import show_logs
from deskside.report.terminal import as_json, rates_of, show
from deskside.services import Services
from deskside.text import utf8
from deskside.text.source import STDIN, read_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deskside.llm import LLM

__all__ = ["add_commands"]

MOST_SECONDS = 600
DOES_NOT_FIT = 3

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


def add_commands(app: App, services: Services) -> None:
    """Add all of them."""
    commands = _Commands(services)
    app.command(commands.run, sort_key=1)
    app.command(commands.plan, sort_key=2)
    app.command(commands.profile, sort_key=3)
    app.command(commands.doctor, sort_key=4)
    app.command(commands.serve, sort_key=5)


def _unseen(_loads: Sequence[RankLoad]) -> None:
    """Take in a load's progress and show nothing."""


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
