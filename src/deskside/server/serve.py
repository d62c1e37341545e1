"""`deskside serve`: one process that answers HTTP, one that computes, and their life together.

Owns the order of a start, the drain after SIGTERM, and what is left when the engine is gone:
nothing. Loads no torch.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from deskside.config.engine import EngineOptions
from deskside.config.environment import notify_socket
from deskside.config.server import ServerOptions
from deskside.errors import CapacityError, CheckpointError, DesksideError, InputError, LostRankError
from deskside.injection import Probe, injections
from deskside.layout.folder import resolve
from deskside.report.loading import Loading
from deskside.report.version import describe
from deskside.runtime.launch import WORKER, Worker, launch
from deskside.server import faults
from deskside.server.app import make_app
from deskside.server.bind import bind, check_exposure, read_key
from deskside.server.connection import HttpConnection
from deskside.server.engine import RemoteEngine
from deskside.server.guard import Rules, is_loopback
from deskside.server.metrics import Metrics
from deskside.server.phase import Phase
from deskside.server.service import Service, now
from deskside.server.status import StatusLines
from deskside.text.chat import ChatEncoder
from deskside.text.guide import Guides
from deskside.text.kept import MOST_IDS, KeptIds
from deskside.text.tokenizer import Tokenizer

__all__ = ["READY", "serve"]

READY = "ready to serve"
"""The one line on standard output that says so, after a warm-up token came through."""

HEADERS = 65_536
"""Most bytes of a request's headers."""
LAST_WORDS = 3.0
"""Seconds in which last events must leave when the engine is gone."""

TOLD: Mapping[int, type[DesksideError]] = {1: DesksideError, 2: InputError, 3: CapacityError}
"""What to raise for a worker that could tell why it ended, by its exit code."""

log = logging.getLogger("deskside.serve")


def serve(model: str, engine: EngineOptions, options: ServerOptions, module: str = WORKER) -> int:
    """Serve a model until a signal or a fault ends it; return the exit code.

    Args:
        model: a folder in the 0731 layout, or the name of one that ships.
        engine: how to load and run it.
        options: how to meet clients.
        module: what runs as the engine's process.

    Raises:
        InputError: an option cannot be obeyed; nothing was started.
        PortHeldError: somebody else listens there.
        LostRankError: the engine died or hung while it served.
    """
    key = read_key(options)
    check_exposure(options, key)
    if engine.test_faults and not is_loopback(options.host):
        raise InputError(f"--test-faults is for tests on this machine, not for {options.host}")
    folder = resolve(model)
    tokenizer = Tokenizer.open(folder)
    chat = _chat(folder, tokenizer)
    with contextlib.closing(bind(options.host, options.port)) as listener, _logging():
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        log.info("listening on http://%s:%d", shown, port)
        with launch(model, engine, module) as worker:
            rules = Rules.of(options.host, key, options.allowed_hosts, options.cors_origins)
            kept = None if engine.prefix_cache == "off" else KeptIds(tokenizer, _most_kept(engine))
            run = _Run(folder.name, tokenizer, chat, options, rules, engine.test_faults, kept)
            # This loop costs a request two fifths less time of a core than Python's own.
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(run.serve(worker, listener))


def _most_kept(engine: EngineOptions) -> int:
    """Return how many ids of answers are worth keeping: of many more no pages can be left."""
    return min(MOST_IDS, 4 * engine.kv_tokens) if engine.kv_tokens != "auto" else MOST_IDS


def _chat(folder: Path, tokenizer: Tokenizer) -> ChatEncoder | CheckpointError:
    """Return what renders conversations, or why this checkpoint has none: text is served anyway."""
    try:
        return ChatEncoder.open(folder, tokenizer)
    except CheckpointError as error:
        return error


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Show what the service logs, one line each, on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("deskside")
    before = (logger.handlers, logger.level, logger.propagate)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers, level, logger.propagate = before
        logger.setLevel(level)


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the run."""
        yield


@dataclass(eq=False)
class _Run:
    """One run of a service."""

    model: str
    tokenizer: Tokenizer
    chat: ChatEncoder | CheckpointError
    options: ServerOptions
    rules: Rules
    test_faults: tuple[str, ...]
    kept: KeptIds | None
    _signal: int = 0
    _told: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, worker: Worker, listener: socket.socket) -> int:
        """Answer requests until a signal or the engine's end."""
        metrics = Metrics(self._name)
        probe = Probe(injections(self.test_faults))
        loading = Loading(sys.stderr)
        engine = RemoteEngine(
            worker,
            self.options.max_queue,
            self.options.watchdog,
            metrics,
            probe,
            self.options.load_timeout,
            loading,
        )
        server = self._server(self._service(engine, metrics))
        self._catch_signals()
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                server.serve(sockets=[listener]),
                engine.listen(),
                engine.watch(),
                self._announce(engine, loading),
                StatusLines(engine, self.options.status_every).run(),
            )
        ]
        try:
            await self._until_over(engine, tasks)
            await self._leave(engine, server, tasks[0])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            engine.close()
        return self._outcome(engine)

    @property
    def _name(self) -> str:
        return self.options.served_model_name or self.model

    def _service(self, engine: RemoteEngine, metrics: Metrics) -> Service:
        version = describe()
        fingerprint = "-".join(version.translate(str.maketrans("", "", "(),")).split())
        return Service(
            engine=engine,
            tokenizer=self.tokenizer,
            chat=self.chat,
            guides=Guides(self.tokenizer, self.tokenizer.vocab_size),
            metrics=metrics,
            options=self.options,
            model=self._name,
            fingerprint=fingerprint,
            version=version,
            created=now(),
            kept=self.kept,
        )

    def _server(self, service: Service) -> _Server:
        config = uvicorn.Config(
            make_app(service, self.rules, test_faults=bool(self.test_faults)),
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=round(max(1, self.options.receive_timeout)),
            h11_max_incomplete_event_size=HEADERS,
        )
        return _Server(config)

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take_signal, number)

    def _take_signal(self, number: int) -> None:
        """Begin to drain; a second signal changes nothing, so that no cleanup is skipped."""
        self._signal = self._signal or number
        self._told.set()

    async def _announce(self, engine: RemoteEngine, loading: Loading) -> None:
        with loading:
            await engine.ready.wait()
        print(READY, flush=True)  # noqa: T201
        _notify("READY=1")

    async def _until_over(
        self, engine: RemoteEngine, tasks: Sequence["asyncio.Future[None]"]
    ) -> None:
        """Wait for a signal, the engine's end, or a fault of our own tasks."""
        told: asyncio.Future[Any] = asyncio.ensure_future(self._told.wait())
        ended: asyncio.Future[Any] = asyncio.ensure_future(engine.ended.wait())
        works: set[asyncio.Future[Any]] = set(tasks[:3])
        try:
            done, _ = await asyncio.wait(works | {told, ended}, return_when=asyncio.FIRST_COMPLETED)
            for task in done.intersection(works):
                task.result()  # raises what ended it
        finally:
            told.cancel()
            ended.cancel()

    async def _leave(
        self, engine: RemoteEngine, server: _Server, serving: "asyncio.Future[None]"
    ) -> None:
        """Let running requests end, then the worker, then the connections."""
        if engine.phase is not Phase.DEAD:
            _notify("STOPPING=1")
            loading = engine.facts is None
            engine.drain()
            deadline = time.monotonic() + (0 if loading else self.options.drain_timeout)
            log.info("draining: %d sequences are open", len(engine.tickets))
            while engine.tickets and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            engine.tickets.fail(faults.drained(self.options.drain_timeout))
            if loading:
                engine.worker.kill()  # it listens only when it has loaded
            engine.stop()
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(serving), LAST_WORDS)
        server.force_exit = True

    def _outcome(self, engine: RemoteEngine) -> int:
        """Return the exit code.

        Raises:
            DesksideError: nobody asked for the end; what the worker told, or a LostRankError.
        """
        if self._signal:
            return 128 + self._signal
        told = TOLD.get(engine.exit_code)
        if told is not None:
            raise told(engine.death)
        raise LostRankError(f"the engine is gone: {engine.death}")


def _notify(state: str) -> None:
    """Tell a service manager, if one wants to hear."""
    address = notify_socket()
    if address is None:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
        wire.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
