"""The JSON of a request: bounded before it is parsed, read strictly, and checked for its route.

A long body is read in a thread: the event loop has its turn between the steps of that, so that
other streams go on. Owns the bounds on what a body may hold; knows no field.
"""

import asyncio
from typing import Any

import pydantic_core
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from deskside.server import faults
from deskside.server.faults import Fault
from deskside.server.record import CLIENT_GONE
from deskside.server.structure import Parts, parts_of

__all__ = ["AT_ONCE", "JsonRoute"]

AT_ONCE = 65_536
"""Bytes of a body up to which it is read in the event loop: a thread costs more."""
MOST_PARTS = Parts(names=50_000, containers=50_000, elements=1_500_000)
"""A prompt of token ids has an element for each; ten thousand messages have some names each."""


class _ReadRequest(Request):
    """A request whose body was read and checked before its handler asks for it."""

    fields: Any = None

    async def json(self) -> Any:
        """Return the fields; FastAPI takes what has their type for checked."""
        return self.fields


class JsonRoute(APIRoute):
    """A route that reads its body that way."""

    def get_route_handler(self) -> Any:
        """Return the handler, given requests of our own kind."""
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        kind = self.body_field.field_info.annotation
        assert kind is not None, "a route says what it wants"
        wanted: TypeAdapter[Any] = TypeAdapter(kind)

        async def strict(request: Request) -> Response:
            made = _ReadRequest(request.scope, request.receive)
            try:
                body = await made.body()
            except ClientDisconnect as error:
                raise Fault(CLIENT_GONE, "the client left") from error
            if len(body) < AT_ONCE:
                made.fields = _read(body, wanted)
            else:
                made.fields = await asyncio.to_thread(_read, body, wanted)
            return await handler(made)

        return strict


def _read(body: bytes, wanted: TypeAdapter[Any]) -> Any:
    """Return the fields of a body.

    Raises:
        Fault: it is no JSON, or has too many parts.
        RequestValidationError: it is not what the route wants.
    """
    parts = parts_of(body, MOST_PARTS)
    if parts.exceeds(MOST_PARTS):
        told = "the body has too many parts: {} names, {} objects and lists, {} elements"
        most = "; at most {}, {} and {}"
        raise faults.bad_request((told + most).format(*parts, *MOST_PARTS), code="too_complex")
    try:
        # What users say is kept in no cache of the parser.
        value = pydantic_core.from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        told = f"the body is no JSON: {error}"
        raise faults.bad_request(told, code="invalid_json") from error
    try:
        return wanted.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[:1]
        raise RequestValidationError(first) from error
