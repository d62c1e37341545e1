"""The commands that talk to a service, or about one: chat, status, requests, connect, config.

None of them loads a model. Options are defined in config/.
"""

import importlib
import json as jsonlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from cyclopts import App, Parameter

from deskside.client import show
from deskside.client.connect import Agent, configuration
from deskside.client.peer import Peer, key_of
from deskside.config.commands import ClientOptions, ModelOptions, ProcessOptions
from deskside.errors import InputError

__all__ = ["add_commands"]

Flat = Parameter(name="*", negative="")
Client = Annotated[ClientOptions, Flat]
Model = Annotated[ModelOptions, Flat]
Process = Annotated[ProcessOptions, Flat]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object.")]
System = Annotated[str, Parameter(help="What the model is told first.")]
Which = Annotated[Agent, Parameter(help="The agent.")]
Print = Annotated[
    bool, Parameter(name="--print", negative="", help="Print the configuration; nothing else is.")
]


def add_commands(app: App) -> None:
    """Add all of them."""
    commands = _Commands()
    app.command(commands.chat, sort_key=6)
    app.command(commands.status, sort_key=7)
    app.command(commands.requests, sort_key=8)
    app.command(commands.connect, sort_key=9)
    config = App(name="config", help="Options and where their values come from.", sort_key=10)
    config.command(commands.show)
    app.command(config)


@dataclass(frozen=True, slots=True)
class _Commands:
    """One method for each command; its signature is its command line."""

    def chat(
        self,
        *,
        system: System = "",
        client: Client = ClientOptions(),  # noqa: B008 - frozen
        model: Model = ModelOptions(),  # noqa: B008
        process: Process = ProcessOptions(),  # noqa: B008
    ) -> int:
        """Talk to a model in the terminal: to a service that runs, else to one of its own."""
        from deskside.client.chat import Chat
        from deskside.client.talk import Talk

        with _service(client, model.model, process) as peer:
            name = peer.get("/v1/models")["data"][0]["id"]
            sys.stdout.write(f"{name} at {peer.url}; /help lists the commands\n")
            if sys.stdin.isatty():
                importlib.import_module("readline")  # history and editing for `input`
            Chat(Talk(peer, system), input, sys.stdout).run()
        return 0

    def status(
        self,
        *,
        json: AsJson = False,
        client: Client = ClientOptions(),  # noqa: B008
        process: Process = ProcessOptions(),  # noqa: B008
    ) -> int:
        """Say how a service on this machine stands."""
        peer = _peer(client)
        version, state = peer.get("/version"), peer.get("/admin/requests")
        if json:
            return _print(jsonlib.dumps({"version": version, "state": state}))
        return _print("\n".join(show.status_lines(peer.url, version, state)))

    def requests(
        self,
        *,
        json: AsJson = False,
        client: Client = ClientOptions(),  # noqa: B008
        process: Process = ProcessOptions(),  # noqa: B008
    ) -> int:
        """List what runs or waits in a service on this machine."""
        found = _peer(client).get("/admin/requests")["requests"]
        return _print(jsonlib.dumps(found) if json else "\n".join(show.requests_lines(found)))

    def connect(
        self,
        agent: Which,
        /,
        *,
        print: Print = False,  # noqa: A002 - the flag's name
        client: Client = ClientOptions(),  # noqa: B008
        model: Model = ModelOptions(),  # noqa: B008
        process: Process = ProcessOptions(),  # noqa: B008
    ) -> int:
        """Say what a coding agent must be told to work with a service; install nothing."""
        if not print:
            raise InputError("connect installs nothing: give --print and paste what it says")
        capacity = _capacity(client, model.model)
        return _print(configuration(agent, client.server, model.model, capacity))

    def show(
        self,
        *,
        process: Process = ProcessOptions(),  # noqa: B008
    ) -> int:
        """Show every option, its value without flags, and where the value comes from."""
        from deskside.report.settings import settings_lines

        return _print("\n".join(settings_lines(process.config)))


def _peer(client: ClientOptions) -> Peer:
    return Peer(client.server.rstrip("/"), key_of(client))


def _capacity(client: ClientOptions, model: str) -> int | None:
    """Return the tokens that fit a service that runs, if one does and says so."""
    peer = _peer(client)
    if not peer.listens:
        return None
    try:
        return int(peer.get(f"/v1/models/{quote(model, safe='')}")["max_model_len"])
    except InputError:  # it loads still, or has another name
        return None


@contextmanager
def _service(client: ClientOptions, model: str, process: ProcessOptions) -> Iterator[Peer]:
    """Yield the service that runs; where the default place is empty, one that is started."""
    peer = _peer(client)
    if client.server != ClientOptions().server or peer.listens:
        yield peer
        return
    from deskside.client.own import started

    sys.stderr.write("nothing runs yet: starting a service, which takes a moment\n")
    words = ["--model", model]
    if process.config is not None:
        words += ["--config", str(process.config)]
    with started(words, peer.key) as own:
        yield own


def _print(text: str) -> int:
    sys.stdout.write(text + "\n")
    return 0
