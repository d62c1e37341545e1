"""The engine as the HTTP process sees it: submit, listen, abort, and whether it is there.

Owns the queue's bound, the names of sequences on the wire and the way from events to the requests
that wait for them. Runs in one event loop; knows neither HTTP nor text.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from deskside.core import Emission, Request
from deskside.errors import InputError
from deskside.injection import SERVER_SITES, Injection, Probe, Site
from deskside.report.ranks import ranks_table
from deskside.runtime.launch import Worker
from deskside.scheduler.admission import Admissions
from deskside.server import faults
from deskside.server.faults import Fault
from deskside.wire.messages import (
    Abort,
    Accepted,
    Alive,
    Arm,
    Command,
    Event,
    Failed,
    Gauges,
    Progress,
    Ready,
    Refused,
    Step,
    Stop,
    Submit,
)
from deskside.wire.sockets import ServerEnd

__all__ = ["Listener", "Phase", "RemoteEngine", "Ticket", "Totals"]

MOST_UNREAD = 4096
"""Tokens that a ticket keeps for a reader who does not take them."""

LAST_WORDS = 0.1
"""Seconds in which what an ended worker last sent arrives."""

PERCENT = {"starting": 0, "weights": 5, "warm-up": 95}
WEIGHTS_SHARE = 90

log = logging.getLogger("deskside.engine")


class Phase(StrEnum):
    """Where the service stands."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class Listener(Protocol):
    """Is told what happens."""

    def ready(self, facts: Ready) -> None:
        """Hear that the engine is ready."""
        ...

    def stepped(self, step: Step) -> None:
        """Hear of a step."""
        ...


@dataclass(slots=True)
class Totals:
    """Counts since the start."""

    tokens: int = 0
    verified: int = 0
    accepted: int = 0

    def add(self, emission: Emission) -> None:
        """Count an emission."""
        self.tokens += len(emission.tokens)
        self.verified += emission.verified
        self.accepted += emission.accepted


@dataclass(eq=False)
class Ticket:
    """The sequences of one HTTP request, and one stream of what comes of them."""

    engine: "RemoteEngine"
    name: str
    keys: tuple[str, ...]
    seeds: dict[int, int] = field(default_factory=dict)
    submitted: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    _events: deque[tuple[int, Emission]] = field(default_factory=deque)
    _unread: int = 0
    _open: set[int] = field(default_factory=set)
    _fault: Fault | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._open = set(range(len(self.keys)))

    @property
    def open(self) -> int:
        """Sequences that have not ended."""
        return len(self._open)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Emission]]:
        """Yield pairs of a sequence's place and an emission, until all sequences ended.

        Raises:
            Fault: the engine, or one of the sequences, came to grief.
        """
        while True:
            while self._events:
                place, emission = self._events.popleft()
                self._unread -= len(emission.tokens)
                yield place, emission
            if self._fault is not None:
                raise self._fault
            if not self._open:
                return
            self._wake.clear()
            await self._wake.wait()

    def put(self, place: int, emission: Emission) -> None:
        """Add an emission; a reader who takes nothing for too long loses the request."""
        if emission.tokens and self.first_token is None:
            self.first_token = time.perf_counter()
        self._events.append((place, emission))
        self._unread += len(emission.tokens)
        if emission.finish is not None:
            self._open.discard(place)
        self._wake.set()
        if self._unread > MOST_UNREAD:
            self.close()
            self.fail(Fault(500, "the reader is too slow", faults.SERVER, "slow_reader"))

    def fail(self, fault: Fault) -> None:
        """End the stream with a fault, behind what came before it."""
        self._fault = self._fault or fault
        self._wake.set()

    def close(self) -> None:
        """Let go of sequences that still run; any number of times."""
        self.engine.leave(self, [self.keys[place] for place in sorted(self._open)])
        self._open.clear()
        self._wake.set()


@dataclass(eq=False)
class RemoteEngine:
    """The worker behind two sockets."""

    worker: Worker
    max_queue: int
    watchdog: float
    listener: Listener
    probe: Probe = field(default_factory=Probe)
    load_timeout: float = 3600.0
    phase: Phase = Phase.LOADING
    facts: Ready | None = None
    gauges: Gauges = field(default_factory=Gauges)
    progress: Progress = field(default_factory=lambda: Progress(phase="starting"))
    totals: Totals = field(default_factory=Totals)
    last_token: float | None = None
    death: str = ""
    exit_code: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the worker is gone."""
    _started: float = field(default_factory=time.monotonic)
    _heard: float = field(default_factory=time.monotonic)
    _tickets: dict[str, tuple[Ticket, int]] = field(default_factory=dict)
    _admissions: Admissions | None = None

    def __post_init__(self) -> None:
        self._wire = ServerEnd(self.worker.commands, self.worker.events)

    @property
    def percent(self) -> int:
        """How far the start has come; never falls."""
        progress = self.progress
        share = progress.done / progress.total if progress.total else 0.0
        return PERCENT.get(progress.phase, 0) + int(WEIGHTS_SHARE * share)

    @property
    def open_sequences(self) -> int:
        """Sequences that were submitted and have not ended."""
        return len(self._tickets)

    def require_ready(self) -> Ready:
        """Return the engine's numbers.

        Raises:
            Fault: it is loading, leaving or gone.
        """
        if self.phase is Phase.DEAD:
            raise faults.engine_dead(self.death)
        if self.phase is Phase.DRAINING:
            raise faults.draining()
        if self.facts is None:
            raise faults.loading(self.progress.phase, self.percent)
        return self.facts

    def require_facts(self) -> Ready:
        """Return the engine's numbers, also while it drains.

        Raises:
            Fault: they are not known yet.
        """
        if self.facts is None:
            raise faults.loading(self.progress.phase, self.percent)
        return self.facts

    @property
    def last_token_age(self) -> float | None:
        """Seconds since the last token, or None before the first one."""
        return None if self.last_token is None else time.monotonic() - self.last_token

    def check_health(self) -> Ready:
        """Return the engine's numbers if a request would be served now.

        Raises:
            Fault: it is loading, leaving, held still or gone.
        """
        facts = self.require_ready()
        if self.worker.stopped():
            raise faults.engine_dead("its process is stopped")
        return facts

    def submit(self, name: str, requests: Sequence[Request], param: str) -> Ticket:
        """Queue the sequences of one request, all or none.

        Args:
            name: of the request.
            requests: one for each sequence.
            param: the field of the request that prompts come from.

        Raises:
            Fault: one of them could never run, or there is no place.
        """
        facts = self.require_ready()
        assert self._admissions is not None
        for request in requests:
            try:
                self._admissions.check(request)
            except InputError as error:
                raise faults.of_input(error, param) from error
        most = facts.max_running + self.max_queue
        if len(self._tickets) + len(requests) > most:
            raise faults.queue_full(len(self._tickets), most)
        ticket = Ticket(self, name, tuple(f"{name}-{place}" for place in range(len(requests))))
        with ExitStack() as undo:
            undo.callback(ticket.close)  # none of them may run for nobody
            for place, (key, request) in enumerate(zip(ticket.keys, requests, strict=True)):
                self._tickets[key] = (ticket, place)
                self.probe.at(Site.QUEUE)
                self._send(Submit(key=key, request=request))
            undo.pop_all()
        return ticket

    def arm(self, injected: Sequence[Injection]) -> None:
        """Let faults happen, here and in the worker, for tests."""
        self.probe.arm([one for one in injected if one.site in SERVER_SITES])
        self._send(Arm(injections=[one for one in injected if one.site not in SERVER_SITES]))

    def describe(self) -> list[dict[str, Any]]:
        """Return what runs or waits, one record a sequence."""
        now = time.perf_counter()
        return [
            {"id": ticket.name, "sequence": key, "age_s": now - ticket.submitted}
            for key, (ticket, _) in self._tickets.items()
        ]

    def abort(self, name: str) -> bool:
        """End a request by its name; false where there is none."""
        found = [ticket for ticket, _ in self._tickets.values() if ticket.name == name]
        if found:
            found[0].fail(Fault(500, "the request was aborted", faults.SERVER, "aborted"))
            found[0].close()
        return bool(found)

    def leave(self, ticket: Ticket, keys: Sequence[str]) -> None:
        """Forget sequences of a ticket and abort them."""
        known = [key for key in keys if self._tickets.pop(key, None) is not None]
        if known and self.phase is not Phase.DEAD:
            self._send(Abort(keys=known))

    def fail_all(self, fault: Fault) -> None:
        """End every open stream with a fault, and abort what runs."""
        for ticket in {id(ticket): ticket for ticket, _ in self._tickets.values()}.values():
            ticket.fail(fault)
            ticket.close()

    def drain(self) -> None:
        """Take nothing new from now on."""
        if self.phase is not Phase.DEAD:
            self.phase = Phase.DRAINING

    def stop(self) -> None:
        """Tell the worker to leave."""
        self._send(Stop())

    def close(self) -> None:
        """Close the sockets."""
        self._wire.close()

    async def listen(self) -> None:
        """Take events for ever."""
        loop, come = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._wire.descriptor, come.set)
        try:
            while True:
                come.clear()
                self._take_all()
                await come.wait()
        finally:
            loop.remove_reader(self._wire.descriptor)

    async def watch(self, every: float = 0.25) -> None:
        """Notice a worker that ended or hangs, and return when it is gone."""
        while self.worker.exit_status() is None:
            await asyncio.sleep(every)
            if self.facts is None and time.monotonic() - self._started > self.load_timeout:
                self._die(f"not ready in {self.load_timeout:g} s (--load-timeout) {self.doing()}")
                self.worker.kill()
            silent = time.monotonic() - self._heard
            if self.facts is not None and silent > self.watchdog:
                self._die(f"no word for {silent:.0f} s (--watchdog) {self.doing()}")
                self.worker.kill()
        await asyncio.sleep(LAST_WORDS)
        self._take_all()
        self._die(f"process {self.worker.pid} {self.worker.ending()} {self.doing()}")
        self.ended.set()

    def doing(self) -> str:
        """Say what the worker was last known to do."""
        if self.facts is None:
            return f"while loading ({self.progress.phase}, {self.percent} %)"
        if self.gauges.running or self.gauges.waiting:
            return f"after step {self.gauges.step} with {self.gauges.running} running"
        return f"while idle after step {self.gauges.step}"

    def _take_all(self) -> None:
        for event in self._wire.receive():
            self._take(event)

    def _take(self, event: Event) -> None:
        self._heard = time.monotonic()
        match event:
            case Progress():
                self.progress = event
            case Ready():
                self._become_ready(event)
            case Accepted():
                self._note_seed(event)
            case Refused():
                self._refuse(event)
            case Step():
                self._deliver(event)
            case Alive():
                self.gauges = event.gauges
            case Failed():
                self.exit_code = event.exit_code
                self._die(event.message)

    def _become_ready(self, facts: Ready) -> None:
        self.facts = facts
        self.gauges = facts.gauges
        for line in ranks_table(facts.ranks) if facts.ranks else ():
            log.info("placement: %s", line)
        self._admissions = Admissions(
            facts.kv_pages,
            facts.max_running,
            facts.vocab,
            positions=facts.max_positions,
            greedy_only=facts.greedy_only,
        )
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY
        self.listener.ready(facts)
        self.ready.set()

    def _note_seed(self, event: Accepted) -> None:
        if event.key in self._tickets:
            ticket, place = self._tickets[event.key]
            ticket.seeds[place] = event.seed

    def _refuse(self, event: Refused) -> None:
        if event.key in self._tickets:
            ticket, _ = self._tickets.pop(event.key)
            ticket.fail(faults.of_request(event.code, event.message))

    def _deliver(self, step: Step) -> None:
        self.gauges = step.gauges
        for key, emission in step.emissions.items():
            self.totals.add(emission)
            if emission.tokens:
                self.last_token = time.monotonic()
            found = self._tickets.get(key)
            if found is None:  # aborted while the step ran
                continue
            if emission.finish is not None:
                del self._tickets[key]
            ticket, place = found
            ticket.put(place, emission)
        self.listener.stepped(step)

    def _die(self, reason: str) -> None:
        if self.phase is Phase.DEAD:
            return
        self.phase, self.death = Phase.DEAD, reason
        self.fail_all(faults.engine_dead(reason))

    def _send(self, command: Command) -> None:
        self._wire.send(command)
