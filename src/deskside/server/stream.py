"""Server-sent events, and answers for clients that may leave while they wait."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from deskside.config.server import ServerOptions
from deskside.injection import Act, Probe, Site
from deskside.server.connection import ABORT
from deskside.server.faults import Fault
from deskside.server.record import CLIENT_GONE, record_of

__all__ = ["DONE", "event", "fault_event", "named_event", "stream", "unless_gone"]

DONE = b"data: [DONE]\n\n"
"""Ends a stream that is whole."""

T = TypeVar("T")

log = logging.getLogger("deskside.requests")


def event(chunk: BaseModel) -> bytes:
    """Return a chunk as an event; only fields that were set are in it."""
    return b"data: " + chunk.model_dump_json(exclude_unset=True).encode() + b"\n\n"


def named_event(name: str, body: Mapping[str, Any]) -> bytes:
    """Return an event that has a name, as those of messages and responses do."""
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode()


def fault_event(fault: Fault) -> bytes:
    """Return the event that ends a stream whose headers are gone."""
    return b"data: " + json.dumps(fault.event()).encode() + b"\n\n"


class _EventStream(EventSourceResponse):
    """A stream whose reader is dropped when it takes nothing for too long."""

    probe = Probe()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or cut the connection: what is still buffered is not waited for."""

        async def probed(message: Message) -> None:
            if message.get("more_body") and self.probe.at(Site.WRITE) is Act.TEAR:
                scope["state"][ABORT]()
            await send(message)

        try:
            await super().__call__(scope, receive, probed)
        except* SendTimeoutError:  # of an event, of a keep-alive comment, or of both at once
            log.info("%s: who reads nothing is dropped (--send-timeout)", record_of(scope).name)
            scope["state"][ABORT]()


def stream(
    events: AsyncIterator[bytes], options: ServerOptions, probe: Probe | None = None
) -> EventSourceResponse:
    """Return the answer that sends events as they come, and comments while none does."""
    made = _EventStream(
        events,
        ping=options.keep_alive,
        ping_message_factory=lambda: ServerSentEvent(comment="still here"),
        sep="\n",
        send_timeout=options.send_timeout,
    )
    made.probe = probe or Probe()
    return made


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; cancel it when the client leaves.

    Raises:
        Fault: the client left; there is nobody to tell.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.wait({task, gone})
    raise Fault(CLIENT_GONE, "the client left")


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
