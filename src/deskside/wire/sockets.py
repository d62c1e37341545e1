"""Both ends of the wire: commands one way, events the other, over private ipc sockets.

Knows nothing of what the messages mean.
"""

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import zmq

from deskside.wire.messages import COMMAND, EVENT, Command, Event

__all__ = ["ServerEnd", "WorkerEnd"]


def _keep_all(socket: "zmq.Socket[Any]") -> None:
    """Drop no message and hold up no exit: queues are bounded where requests are admitted."""
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, 0)


class WorkerEnd:
    """Both sockets of a worker, connected."""

    def __init__(self, commands: str, events: str) -> None:
        """Connect to the addresses of an order."""
        self._context = zmq.Context(io_threads=1)
        self._commands = self._context.socket(zmq.PULL)
        self._events = self._context.socket(zmq.PUSH)
        for socket, address in ((self._commands, commands), (self._events, events)):
            _keep_all(socket)
            socket.connect(address)

    def send(self, event: Event) -> None:
        """Send an event; never waits."""
        self._events.send(event.model_dump_json().encode())

    def receive(self, timeout: float) -> list[Command]:
        """Return the commands that are there; wait up to `timeout` seconds for the first one."""
        found: list[Command] = []
        wait = round(timeout * 1000)
        while self._commands.poll(wait if not found else 0):
            found.append(COMMAND.validate_json(self._commands.recv()))
        return found

    def flush(self, seconds: float) -> None:
        """Close, giving the last events this long to leave."""
        self._events.close(linger=round(seconds * 1000))
        self._commands.close()
        self._context.term()

    def __enter__(self) -> Self:
        """Return the end itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, giving the last events a second."""
        self.flush(1.0)


class ServerEnd:
    """Both sockets of the process that starts a worker, bound; neither call ever waits."""

    def __init__(self, commands: str, events: str) -> None:
        """Bind the addresses of an order."""
        self._context = zmq.Context(io_threads=1)
        self._commands = self._context.socket(zmq.PUSH)
        self._events = self._context.socket(zmq.PULL)
        for socket, address in ((self._commands, commands), (self._events, events)):
            _keep_all(socket)
            socket.bind(address)

    @property
    def descriptor(self) -> int:
        """What becomes readable when events may have come; then `receive` must take them all."""
        return self._events.FD

    def receive(self) -> Iterator[Event]:
        """Yield the events that are there."""
        with contextlib.suppress(zmq.Again):
            while True:
                yield EVENT.validate_json(self._events.recv(zmq.NOBLOCK))

    def send(self, command: Command) -> None:
        """Send a command; without a worker at the other end it is dropped."""
        with contextlib.suppress(zmq.Again):
            self._commands.send(command.model_dump_json().encode(), zmq.NOBLOCK)

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)
