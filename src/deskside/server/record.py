"""What is remembered of one HTTP request, for the log and for the metrics.

One line a request, at its end, escaped and short: no prompt, no key and no query string is in it.
"""

import logging
import time
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deskside.server.metrics import Metrics

__all__ = ["RequestLog", "RequestRecord", "record_of"]

CLIENT_GONE = 499
RECORD = "deskside.record"
LONGEST_PATH = 100

log = logging.getLogger("deskside.requests")


@dataclass(slots=True)
class RequestRecord:
    """Counts and times of a request; routes fill in what they know."""

    started: float = field(default_factory=time.perf_counter)
    name: str = "-"
    status: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    verified: int = 0
    accepted: int = 0
    cached: int = 0
    """Tokens of the prompts that were computed before."""
    first_token: float | None = None
    """Seconds from the arrival to the first token."""
    seeds: tuple[int, ...] = ()
    finish: str = "-"

    def line(self, method: str, path: str, seconds: float) -> str:
        """Return the line for the log."""
        shown = path[:LONGEST_PATH].encode("unicode_escape").decode()
        words = [self.name, method, shown, str(self.status), f"{seconds * 1000:.1f} ms"]
        if self.prompt_tokens:
            words.append(f"prompt {self.prompt_tokens}, output {self.completion_tokens}")
            if self.cached:
                words.append(f"cached {self.cached}")
            words.append(f"finish {self.finish}")
        if self.first_token is not None:
            words.append(f"first token {self.first_token * 1000:.1f} ms")
        if self.verified:
            words.append(f"accepted {self.accepted} of {self.verified}")
        if self.seeds:
            words.append(f"seeds {','.join(map(str, self.seeds[:4]))}")
        return " ".join(words)


def record_of(scope: Scope) -> RequestRecord:
    """Return the record of the request that a scope belongs to."""
    record: RequestRecord = scope[RECORD]
    return record


@dataclass(frozen=True, slots=True)
class RequestLog:
    """ASGI layer that keeps the record, and writes its line when the request is over."""

    app: ASGIApp
    metrics: Metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = RequestRecord()
        scope[RECORD] = record

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and not record.status:
                record.status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            seconds = time.perf_counter() - record.started
            log.info("%s", record.line(scope["method"], scope["path"], seconds))
            self.metrics.answered(scope["path"], record.status)
