"""Who waits for which sequence: from the engine's events to the requests that want them.

Owns the names of sequences on the wire, and what came for a reader who has not taken it yet. Knows
neither HTTP nor text, and not how the engine is reached.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from deskside.core import Emission
from deskside.server import faults
from deskside.server.faults import Fault

__all__ = ["Ticket", "Tickets"]

MOST_UNREAD = 4096
"""Tokens that a ticket keeps for a reader who does not take them."""


@dataclass(eq=False)
class Ticket:
    """The sequences of one HTTP request, and one stream of what comes of them."""

    tickets: "Tickets"
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
        self.tickets.leave([self.keys[place] for place in sorted(self._open)])
        self._open.clear()
        self._wake.set()


@dataclass(slots=True)
class Tickets:
    """All sequences that were submitted and have not ended, by their names on the wire."""

    abort: Callable[[Sequence[str]], None]
    """Tells the engine that nobody wants these any more."""
    _places: dict[str, tuple[Ticket, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._places)

    def issue(self, name: str, sequences: int) -> Ticket:
        """Return the ticket of a request with so many sequences; none of them is known yet."""
        return Ticket(self, name, tuple(f"{name}-{place}" for place in range(sequences)))

    def enter(self, ticket: Ticket) -> Iterator[tuple[int, str]]:
        """Yield places and names of a ticket's sequences, each once it is known."""
        for place, key in enumerate(ticket.keys):
            self._places[key] = (ticket, place)
            yield place, key

    def leave(self, keys: Sequence[str]) -> None:
        """Forget sequences, and abort those that were known."""
        known = [key for key in keys if self._places.pop(key, None) is not None]
        if known:
            self.abort(known)

    def note_seed(self, key: str, seed: int) -> None:
        """Note the seed of a sequence, if it is still wanted."""
        if key in self._places:
            ticket, place = self._places[key]
            ticket.seeds[place] = seed

    def refuse(self, key: str, fault: Fault) -> None:
        """End a sequence that the engine did not take."""
        if key in self._places:
            ticket, _ = self._places.pop(key)
            ticket.fail(fault)

    def deliver(self, key: str, emission: Emission) -> None:
        """Hand an emission to who waits; nobody does if it was aborted while a step ran."""
        found = self._places.get(key)
        if found is None:
            return
        if emission.finish is not None:
            del self._places[key]
        ticket, place = found
        ticket.put(place, emission)

    def fail(self, fault: Fault, name: str | None = None) -> bool:
        """End open streams with a fault and abort what runs.

        Args:
            fault: what their readers are told.
            name: of the one request that is meant, else all are.

        Returns:
            Whether there was any.
        """
        found = {id(ticket): ticket for ticket, _ in self._places.values()}.values()
        meant = [ticket for ticket in found if name in (None, ticket.name)]
        for ticket in meant:
            ticket.fail(fault)
            ticket.close()
        return bool(meant)

    def describe(self) -> list[dict[str, Any]]:
        """Return what runs or waits, one record a sequence."""
        now = time.perf_counter()
        return [
            {"id": ticket.name, "sequence": key, "age_s": now - ticket.submitted}
            for key, (ticket, _) in self._places.items()
        ]
