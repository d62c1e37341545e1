"""Before the engine is ready every route but the live probe says so, with phase and percent."""

from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from deskside.server.engine import RemoteEngine
from deskside.server.faults import Fault
from deskside.server.guard import OPEN

__all__ = ["Gate"]


@dataclass(frozen=True, slots=True)
class Gate:
    """ASGI layer that is shut while the engine loads."""

    app: ASGIApp
    engine: RemoteEngine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 503."""
        if scope["type"] == "http" and scope["path"] not in OPEN and self.engine.facts is None:
            try:
                self.engine.require_ready()
            except Fault as fault:
                await fault.response(scope["path"])(scope, receive, send)
                return
        await self.app(scope, receive, send)
