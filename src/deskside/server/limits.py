"""How much a client may send, in what form and in which time.

Owns the bound on a body, counted while it comes, the time for it, and the refusal of what is not
JSON. A body that is refused is not read to its end; the connection closes.
"""

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deskside.server import faults
from deskside.server.faults import Fault

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """ASGI layer that bounds what is received."""

    app: ASGIApp
    most: int
    """Bytes of a body."""
    seconds: float
    """From the headers to the body's end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with a bounded `receive`."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        fault = self._fault_of(scope)
        if fault is None:
            body = _Body(receive, self.most, asyncio.get_running_loop().time() + self.seconds)
            await self.app(scope, body, _Answer(send, body))
            fault = body.fault
        if fault is not None:
            await fault.response(scope["path"])(scope, receive, send)

    def _fault_of(self, scope: Scope) -> Fault | None:
        """Judge a request by its headers."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > self.most:
            return faults.body_too_large(self.most)
        if scope["method"] == "POST" and not _is_json(headers.get(b"content-type", b"")):
            return Fault(
                415,
                "the body must be JSON: send the header Content-Type: application/json",
                code="unsupported_media_type",
                headers=faults.CLOSE,
            )
        return None


@dataclass(slots=True)
class _Body:
    """A `receive` that counts bytes and looks at the clock, until the body is whole.

    To the application a body that is refused looks like a client who left.
    """

    receive: Receive
    most: int
    deadline: float
    fault: Fault | None = None
    _count: int = 0
    _whole: bool = False

    async def __call__(self) -> Message:
        if self._whole:
            return await self.receive()
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self.receive()
        except TimeoutError:
            return self._refuse(faults.too_slow(self.deadline - started))
        self._count += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._count > self.most:
            return self._refuse(faults.body_too_large(self.most))
        return message

    def _refuse(self, fault: Fault) -> Message:
        self.fault, self._whole = fault, True
        return {"type": "http.disconnect"}


@dataclass(frozen=True, slots=True)
class _Answer:
    """A `send` that keeps back what the application says about a body that was refused."""

    send: Send
    body: _Body

    async def __call__(self, message: Message) -> None:
        if self.body.fault is None:
            await self.send(message)


def _is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (
        kind.startswith(b"application/") and kind.endswith(b"+json")
    )
