"""Every way in which a request can fail, as a status, a body and headers.

Owns the shape of error bodies: one object under `error`, with message, type, param and code, for
whole answers and for events within a stream alike. On the routes of Anthropic's API the types are
that API's, and the body says that it is an error.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse

from deskside.errors import ContextLengthError, GrammarError, InputError

__all__ = [
    "Fault",
    "bad_request",
    "body_too_large",
    "drained",
    "draining",
    "engine_dead",
    "field_of",
    "loading",
    "model_not_found",
    "of_bug",
    "of_engine",
    "of_input",
    "of_request",
    "queue_full",
    "too_many_sequences",
    "too_slow",
]

CLOSE = {"Connection": "close"}
"""For answers to bodies that are not read to their end."""

ENGINE_CODES = {
    "NanLogitsError": "nan_logits",
    "MemoryError": "out_of_memory",
    "OutOfMemoryError": "out_of_memory",
}
"""Codes that clients see, by the kind of error that ended a sequence."""

MESSAGES = "/v1/messages"
"""Where the routes of Anthropic's API begin."""
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""That API's types of errors; others below 500 are invalid requests, above them faults of ours."""

INVALID, UNAVAILABLE, SERVER = "invalid_request_error", "service_unavailable", "server_error"


@dataclass(eq=False)
class Fault(Exception):  # noqa: N818 - it is what a client is told of
    """A failed request. `details` are further fields of the body, beside `error`."""

    status: int
    message: str
    kind: str = INVALID
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the body of an answer with this fault."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error, **self.details}

    def event(self) -> dict[str, Any]:
        """Return what a stream says whose headers are gone: the status takes a code's place."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status if self.code is None else self.code,
        }
        return {"error": error}

    def message_body(self) -> dict[str, Any]:
        """Return the body, or the event, of Anthropic's API."""
        kind = KINDS.get(self.status, INVALID if self.status < 500 else "api_error")
        error = {**self.body()["error"], "type": kind}
        return {"type": "error", "error": error, **self.details}

    def response(self, path: str) -> JSONResponse:
        """Return the whole answer to a request for `path`."""
        body = self.message_body() if path.startswith(MESSAGES) else self.body()
        return JSONResponse(body, self.status, dict(self.headers))


def bad_request(message: str, param: str | None = None, code: str | None = None) -> Fault:
    """Something in the body cannot be done; `param` names the field."""
    return Fault(400, message, INVALID, code, param)


def of_input(error: InputError, param: str | None = None) -> Fault:
    """Turn a refusal of the layers below into a fault."""
    if isinstance(error, ContextLengthError):
        return bad_request(str(error), param, "context_length_exceeded")
    return bad_request(str(error), param)


def field_of(message: str, known: Container[str], default: str) -> str:
    """Return the field that a refusal of the layers below names first."""
    named = re.split(r"[ .\[:]", message, maxsplit=1)[0]
    return named if named in known else default


def model_not_found(name: str, have: str) -> Fault:
    """The request names a model that is not served."""
    told = f"model {name!r:.100} is not served here; this service has {have!r}"
    return Fault(404, told, INVALID, "model_not_found", "model")


def queue_full(waiting: int, most: int) -> Fault:
    """There is no place left to wait in."""
    told = f"too many requests: {waiting} wait or run, at most {most} may; try again (--max-queue)"
    return Fault(429, told, "rate_limit_exceeded", "queue_full", headers={"Retry-After": "1"})


def too_many_sequences(wanted: int, most: int) -> Fault:
    """One request asks for more than may ever run and wait: trying again would not help."""
    told = f"the request asks for {wanted} sequences, at most {most} may run and wait (--max-queue)"
    return bad_request(told)


def body_too_large(most: int) -> Fault:
    """More bytes than a request may have."""
    return Fault(
        413,
        f"the body is larger than {most} bytes (--max-body)",
        code="body_too_large",
        headers=CLOSE,
    )


def too_slow(seconds: float) -> Fault:
    """The client did not send its body in time."""
    told = f"the body did not arrive within {seconds:g} s (--receive-timeout)"
    return Fault(408, told, code="request_timeout", headers=CLOSE)


def loading(phase: str, percent: int) -> Fault:
    """The engine is not ready yet."""
    return Fault(
        503,
        f"the model is loading: {phase}, {percent} %",
        UNAVAILABLE,
        "loading",
        headers={"Retry-After": "2"},
        details={"status": "loading", "phase": phase, "percent": percent},
    )


def draining() -> Fault:
    """The service was told to end and takes nothing new."""
    return Fault(
        503,
        "the service is shutting down",
        UNAVAILABLE,
        "draining",
        headers={"Retry-After": "5"},
        details={"status": "draining"},
    )


def drained(seconds: float) -> Fault:
    """The request did not end in the time that a shutdown leaves."""
    told = f"the service shut down before this request ended (--drain-timeout {seconds:g} s)"
    return Fault(503, told, UNAVAILABLE, "draining")


def engine_dead(reason: str) -> Fault:
    """The engine is gone; trying again does not help."""
    details = {"status": "dead"}
    return Fault(503, f"the engine is gone: {reason}", UNAVAILABLE, "engine_dead", details=details)


def of_request(code: str, message: str) -> Fault:
    """A fault that the engine found in one request."""
    if code == "engine_fault":
        return of_engine(message)
    if code in ("context_length_exceeded", "invalid_request"):
        known = code if code == "context_length_exceeded" else None
        return bad_request(message, code=known)
    return Fault(500, message, SERVER, code)


def of_bug(error: Exception) -> Fault:
    """A fault of our own that nobody foresaw; the log has its traceback."""
    kind = type(error).__name__
    code = ENGINE_CODES.get(kind, "internal_fault")
    return Fault(500, f"internal fault: {kind}", SERVER, code)


def of_engine(told: str) -> Fault:
    """A sequence that the engine lost; `told` begins with the kind of error."""
    kind, _, message = told.partition(": ")
    if kind == GrammarError.__name__:  # another form may do: trying again would not help
        return bad_request(message, code="grammar_failed")
    return Fault(500, told, SERVER, ENGINE_CODES.get(kind, "engine_fault"))
