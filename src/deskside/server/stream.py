"""Server-sent events, and answers for clients that may leave while they wait."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request

from deskside.config import ServerOptions
from deskside.server.faults import Fault
from deskside.server.record import CLIENT_GONE

__all__ = ["DONE", "event", "fault_event", "stream", "unless_gone"]

DONE = b"data: [DONE]\n\n"
"""Ends a stream that is whole."""

T = TypeVar("T")


def event(chunk: BaseModel) -> bytes:
    """Return a chunk as an event; only fields that were set are in it."""
    return b"data: " + chunk.model_dump_json(exclude_unset=True).encode() + b"\n\n"


def fault_event(fault: Fault) -> bytes:
    """Return the event that ends a stream whose headers are gone."""
    return b"data: " + json.dumps(fault.event()).encode() + b"\n\n"


def stream(events: AsyncIterator[bytes], options: ServerOptions) -> EventSourceResponse:
    """Return the answer that sends events as they come, and comments while none does."""
    return EventSourceResponse(
        events,
        ping=options.keep_alive,
        ping_message_factory=lambda: ServerSentEvent(comment="still here"),
        sep="\n",
        send_timeout=options.send_timeout,
    )


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
