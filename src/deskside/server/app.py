"""The HTTP application of a service: routes, the layers around them, and errors in one form."""

import logging
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from deskside.server import faults
from deskside.server.anthropic.fields import CountFields, MessagesFields
from deskside.server.anthropic.messages import answer_messages, count_tokens
from deskside.server.body import JsonRoute
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

__all__ = ["make_app"]

log = logging.getLogger("deskside.requests")


STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
"""What routes document that answer in events where the request asks for them."""


def make_app(service: Service, rules: Rules, *, test_faults: bool = False) -> ASGIApp:
    """Return the application, with its layers around it.

    Args:
        service: what the routes work with.
        rules: who may call.
        test_faults: whether a route may let faults happen.
    """
    app = FastAPI(title="deskside", version=service.version, redirect_slashes=False)
    router = APIRouter(route_class=JsonRoute, dependencies=_key_schemes(rules))
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
    layers: ASGIApp = _Heads(app)
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


@dataclass(frozen=True, slots=True)
class _Heads:
    """ASGI layer that answers HEAD as GET; the connection leaves the body away."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self.app(scope, receive, send)


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
        headers = dict(error.headers or {})
        if "GET" in headers.get("Allow", ""):
            headers["Allow"] = "GET, HEAD"  # as `_Heads` has it
        fault = Fault(error.status_code, str(error.detail), code=code, headers=headers)
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
