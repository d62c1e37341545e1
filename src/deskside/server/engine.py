"""The engine as the HTTP process sees it: submit, listen, abort, and whether it is there.

Owns the queue's bound, and what the worker was last heard to do. Runs in one event loop; knows
neither HTTP nor text.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from deskside.core import RankLoad, Request
from deskside.errors import InputError
from deskside.injection import SERVER_SITES, Injection, Probe, Site
from deskside.report.ranks import ranks_table
from deskside.runtime.launch import Worker
from deskside.scheduler.admission import Admissions
from deskside.server import faults
from deskside.server.phase import Phase
from deskside.server.tickets import Ticket, Tickets
from deskside.server.totals import Totals
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

__all__ = ["Listener", "RemoteEngine"]

LAST_WORDS = 0.1
"""Seconds in which what an ended worker last sent arrives."""

PERCENT = {"starting": 0, "weights": 5, "warm-up": 95}
WEIGHTS_SHARE = 90

log = logging.getLogger("deskside.engine")


class Listener(Protocol):
    """Is told what happens."""

    def ready(self, facts: Ready) -> None:
        """Hear that the engine is ready."""
        ...

    def stepped(self, step: Step) -> None:
        """Hear of a step."""
        ...


@dataclass(eq=False)
class RemoteEngine:
    """The worker behind two sockets."""

    worker: Worker
    max_queue: int
    watchdog: float
    listener: Listener
    probe: Probe = field(default_factory=Probe)
    load_timeout: float = 3600.0
    loading: Callable[[Sequence[RankLoad]], None] = lambda _loads: None
    """Hears how far the load of every rank is."""
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
    _admissions: Admissions | None = None

    def __post_init__(self) -> None:
        self._wire = ServerEnd(self.worker.commands, self.worker.events)
        self.tickets = Tickets(self._abort)

    @property
    def percent(self) -> int:
        """How far the start has come; never falls."""
        progress = self.progress
        share = progress.done / progress.total if progress.total else 0.0
        return PERCENT.get(progress.phase, 0) + int(WEIGHTS_SHARE * share)

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
            raise faults.engine_dead("a process of it is held still")
        return facts

    def require_room(self, sequences: int) -> None:
        """Refuse a request for so many sequences if there is no place, now or ever.

        Raises:
            Fault: there is none.
        """
        most = self.require_ready().max_running + self.max_queue
        if sequences > most:
            raise faults.too_many_sequences(sequences, most)
        if len(self.tickets) + sequences > most:
            raise faults.queue_full(len(self.tickets), most)

    def submit(self, name: str, requests: Sequence[Request], param: str) -> Ticket:
        """Queue the sequences of one request, all or none.

        Args:
            name: of the request.
            requests: one for each sequence; those behind a first choice differ in theirs alone.
            param: the field of the request that prompts come from.

        Raises:
            Fault: one of them could never run, or there is no place.
        """
        self.require_ready()
        assert self._admissions is not None
        firsts = [place for place, request in enumerate(requests) if request.choice == 0]
        try:
            for place in firsts:
                self._admissions.check(requests[place])
        except InputError as error:
            raise faults.of_input(error, param) from error
        self.require_room(len(requests))
        ticket = self.tickets.issue(name, len(requests))
        with ExitStack() as undo:
            undo.callback(ticket.close)  # none of them may run for nobody
            for _ in self.tickets.enter(ticket):
                self.probe.at(Site.QUEUE)
            for place, end in pairwise([*firsts, len(requests)]):
                self._send(Submit(keys=list(ticket.keys[place:end]), request=requests[place]))
            undo.pop_all()
        return ticket

    def arm(self, injected: Sequence[Injection]) -> None:
        """Let faults happen, here and in the worker, for tests."""
        self.probe.arm([one for one in injected if one.site in SERVER_SITES])
        self._send(Arm(injections=[one for one in injected if one.site not in SERVER_SITES]))

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
                who = self.worker.name()
                self._die(f"no word of {who} for {silent:.0f} s (--watchdog) {self.doing()}")
                self.worker.kill()
        await asyncio.sleep(LAST_WORDS)
        self._take_all()
        self._die(f"{self.worker.name()} {self.worker.ending()} {self.doing()}")
        self.ended.set()

    def doing(self) -> str:
        """Say what the worker was last known to do."""
        if self.facts is None:
            doing = f"while loading ({self.progress.phase}, {self.percent} %)"
        elif self.gauges.running or self.gauges.waiting:
            doing = f"after step {self.gauges.step} with {self.gauges.running} running"
        else:
            doing = f"while idle after step {self.gauges.step}"
        return f"{doing}{self.worker.last_words()}"

    def _take_all(self) -> None:
        for event in self._wire.receive():
            self._take(event)

    def _take(self, event: Event) -> None:
        self._heard = time.monotonic()
        match event:
            case Progress():
                self.progress = event
                if event.loads:
                    self.loading(event.loads)
            case Ready():
                self._become_ready(event)
            case Accepted():
                self.tickets.note_seed(event.key, event.seed)
            case Refused():
                self.tickets.refuse(event.key, faults.of_request(event.code, event.message))
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

    def _deliver(self, step: Step) -> None:
        self.gauges = step.gauges
        for key, emission in step.emissions.items():
            self.totals.add(emission)
            if emission.tokens:
                self.last_token = time.monotonic()
            self.tickets.deliver(key, emission)
        self.listener.stepped(step)

    def _die(self, reason: str) -> None:
        if self.phase is Phase.DEAD:
            return
        self.phase, self.death = Phase.DEAD, reason
        self.tickets.fail(faults.engine_dead(reason))

    def _abort(self, keys: Sequence[str]) -> None:
        if self.phase is not Phase.DEAD:
            self._send(Abort(keys=list(keys)))

    def _send(self, command: Command) -> None:
        self._wire.send(command)
