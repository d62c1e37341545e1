"""The HTTP application of a service: routes, the layers around them, and errors in one form."""

import asyncio
import logging
from typing import Any

import pydantic_core
from fastapi import APIRouter, FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from deskside.server import faults
from deskside.server.anthropic.fields import CountFields, MessagesFields
from deskside.server.anthropic.messages import answer_messages, count_tokens
from deskside.server.faults import Fault
from deskside.server.gate import Gate
from deskside.server.guard import Guard, Rules
from deskside.server.limits import Limits
from deskside.server.openai.chat import Rendered, chat, render
from deskside.server.openai.chat_fields import ChatFields
from deskside.server.openai.completions import complete
from deskside.server.openai.fields import CompletionFields
from deskside.server.openai.replies import ChatCompletion, Completion
from deskside.server.page.routes import add_page
from deskside.server.record import RequestLog
from deskside.server.responses.fields import ResponsesFields
from deskside.server.responses.respond import respond
from deskside.server.routes import add_faults, add_live, add_routes
from deskside.server.service import Service
from deskside.server.structure import Parts, parts_of

__all__ = ["make_app"]

log = logging.getLogger("deskside.requests")


AT_ONCE = 65_536
"""Bytes of a body up to which its parts are counted in the event loop: a thread costs more."""
MOST_PARTS = Parts(names=50_000, containers=50_000, elements=1_500_000)
"""A prompt of token ids has an element for each; ten thousand messages have some names each."""

STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
"""What routes document that answer in events where the request asks for them."""


class _JsonRequest(Request):
    """A request whose JSON is read strictly: no NaN, no lone surrogate, no deep nesting."""

    async def json(self) -> Any:
        """Return the parsed body.

        Raises:
            Fault: it is no JSON, or has too many parts.
        """
        body = await self.body()
        if len(body) < AT_ONCE:
            parts = parts_of(body, MOST_PARTS)
        else:
            parts = await asyncio.to_thread(parts_of, body, MOST_PARTS)
        if parts.exceeds(MOST_PARTS):
            told = "the body has too many parts: {} names, {} objects and lists, {} elements"
            most = "; at most {}, {} and {}"
            raise faults.bad_request((told + most).format(*parts, *MOST_PARTS), code="too_complex")
        try:
            # What users say is kept in no cache of the parser.
            return pydantic_core.from_json(body, allow_inf_nan=False, cache_strings="keys")
        except ValueError as error:
            raise faults.bad_request(
                f"the body is no JSON: {error}", code="invalid_json"
            ) from error


class _JsonRoute(APIRoute):
    """A route that reads its body that way."""

    def get_route_handler(self) -> Any:
        """Return the handler, given requests of our own kind."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_JsonRequest(request.scope, request.receive))

        return strict


def make_app(service: Service, rules: Rules, *, test_faults: bool = False) -> ASGIApp:
    """Return the application, with its layers around it.

    Args:
        service: what the routes work with.
        rules: who may call.
        test_faults: whether a route may let faults happen.
    """
    app = FastAPI(title="deskside", version=service.version, redirect_slashes=False)
    router = APIRouter(route_class=_JsonRoute, dependencies=_key_schemes(rules))
    _add_generation(router, service)  # first: routes are tried in order, and these are busy
    add_routes(router, service)
    if test_faults:
        add_faults(router, service)
    app.include_router(router)
    unguarded = APIRouter()
    add_live(unguarded)
    add_page(unguarded)
    app.include_router(unguarded)
    _answer_errors(app)
    layers: ASGIApp = app
    if rules.origins:
        layers = CORSMiddleware(
            layers,
            allow_origins=sorted(rules.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key"],
        )
    layers = Limits(layers, service.options.max_body, service.options.receive_timeout)
    layers = Gate(layers, service.engine)
    return RequestLog(Guard(layers, rules), service.metrics)


def _key_schemes(rules: Rules) -> list[Any]:
    """Return what tells readers of the schema of the key; the guard is what asks for it."""
    if rules.key is None:
        return []
    return [
        Security(HTTPBearer(auto_error=False)),
        Security(APIKeyHeader(name="X-Api-Key", auto_error=False)),
    ]


def _add_generation(router: APIRouter, service: Service) -> None:
    @router.post("/v1/completions", response_model=Completion, responses=STREAMED)
    async def completions(request: Request, fields: CompletionFields) -> Response:
        """Continue raw text or token ids."""
        return await complete(service, request, fields)

    @router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
    async def chat_completions(request: Request, fields: ChatFields) -> Response:
        """Answer a conversation."""
        return await chat(service, request, fields)

    @router.post("/v1/messages", responses=STREAMED)
    async def messages(request: Request, fields: MessagesFields) -> Response:
        """Answer a conversation in the form of Anthropic's API."""
        return await answer_messages(service, request, fields)

    @router.post("/v1/messages/count_tokens")
    async def count_messages(fields: CountFields) -> dict[str, int]:
        """Count the tokens of a conversation's prompt."""
        return await count_tokens(service, fields)

    @router.post("/v1/responses", responses=STREAMED)
    async def responses(request: Request, fields: ResponsesFields) -> Response:
        """Answer a conversation in the form of OpenAI's responses; nothing is stored."""
        return await respond(service, request, fields)

    @router.post("/render")
    async def render_prompt(fields: ChatFields) -> Rendered:
        """Show the exact prompt of a conversation, as text and as token ids."""
        return await render(service, fields)


def _answer_errors(app: FastAPI) -> None:
    """Put every error into one form."""

    @app.exception_handler(Fault)
    async def on_fault(request: Request, fault: Fault) -> JSONResponse:
        return fault.response(request.url.path)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return _invalid(error).response(request.url.path)

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> JSONResponse:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        fault = Fault(error.status_code, str(error.detail), code=code, headers=error.headers or {})
        return fault.response(request.url.path)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> JSONResponse:
        return faults.of_bug(error).response(request.url.path)

    @app.exception_handler(MemoryError)
    async def on_memory(request: Request, error: MemoryError) -> JSONResponse:
        log.error("a request is lost", exc_info=error)
        return faults.of_bug(error).response(request.url.path)


def _invalid(error: RequestValidationError) -> Fault:
    """Name the first field that does not hold what it must."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    if not where:
        return faults.bad_request(f"the body is no JSON object of this request: {first['msg']}")
    return faults.bad_request(f"{'.'.join(where)[:200]}: {first['msg']}", where[0])
