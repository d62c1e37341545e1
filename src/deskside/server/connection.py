"""One connection: uvicorn's HTTP/1.1, with a bound on the time for headers and errors in JSON.

A client that opens a connection and sends nothing, or one byte a second, would hold it forever;
here it has `seconds` from the connection, and again from each answer, to send whole headers.
"""

import asyncio
import json
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from deskside.server.faults import bad_request

__all__ = ["ABORT", "HttpConnection"]

ABORT = "deskside.abort"
"""Where a request's state has what cuts its connection at once."""


class HttpConnection(H11Protocol):
    """A connection that waits for headers no longer than it keeps an idle one."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Take uvicorn's arguments; `timeout_keep_alive` is the time for headers too."""
        super().__init__(config, server_state, app_state, _loop)
        self._headers_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock."""
        super().connection_made(transport)
        self._headers_due = self.loop.call_later(self.timeout_keep_alive, self._give_up)

    def handle_events(self) -> None:
        """Stop the clock while a request is served; start it for headers that began to come."""
        super().handle_events()
        if self.scope is not None:  # its task has not begun: it is only scheduled yet
            self.scope["state"][ABORT] = self.transport.abort
        cycle: RequestResponseCycle | None = self.cycle
        waits = cycle is None or cycle.response_complete
        if not waits and self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None
        elif waits and self._headers_due is None:
            self._headers_due = self.loop.call_later(self.timeout_keep_alive, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        if self._headers_due is not None:
            self._headers_due.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, in the form of every other error."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.close()
            return
        body = json.dumps(bad_request(f"this is no valid HTTP request: {msg}").body()).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _give_up(self) -> None:
        self.transport.close()
