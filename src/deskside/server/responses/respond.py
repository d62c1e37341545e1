"""POST /v1/responses: a conversation, answered in the form of OpenAI's responses; none is kept."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from deskside.core import FinishReason
from deskside.server.conversation import begin
from deskside.server.faults import Fault
from deskside.server.openai.answer import Answer
from deskside.server.responses.fields import ResponsesFields
from deskside.server.responses.offer import call_names
from deskside.server.responses.writer import Event, ItemWriter
from deskside.server.service import Service, new_id, now
from deskside.server.stream import named_event, stream, unless_gone

__all__ = ["respond"]

FAILED = "server_error"
"""The one code of a failed response that clients know."""


@dataclass(slots=True)
class _Work:
    """A response in the making."""

    service: Service
    fields: ResponsesFields
    name: str
    created: int
    answer: Answer
    writer: ItemWriter
    _sequence: int = field(default=0)

    def response(self, status: str, **changes: Any) -> dict[str, Any]:
        """Return the response as it stands."""
        fields = self.fields
        return {
            "id": self.name,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "metadata": (fields.model_extra or {}).get("metadata") or {},
            "model": self.service.model,
            "output": [],
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": (fields.reasoning or {}).get("effort"), "summary": None},
            "store": False,
            "temperature": 1.0 if fields.temperature is None else fields.temperature,
            "text": {"format": (fields.text or {}).get("format") or {"type": "text"}},
            "tool_choice": fields.tool_choice or "auto",
            "tools": fields.tools or [],
            "top_p": 1.0 if fields.top_p is None else fields.top_p,
            "truncation": "disabled",
            "usage": None,
            **changes,
        }

    def ended(self) -> dict[str, Any]:
        """Return the response at its end."""
        (choice,) = self.answer.choices
        found = {"output": self.writer.items, "usage": self._usage()}
        if choice.finish is FinishReason.LENGTH:
            reason = {"reason": "max_output_tokens"}
            return self.response("incomplete", incomplete_details=reason, **found)
        return self.response("completed", **found)

    def failed(self, fault: Fault) -> dict[str, Any]:
        """Return the response that came to grief."""
        error = {"code": FAILED, "message": fault.message}
        return self.response("failed", error=error, output=self.writer.items)

    def encoded(self, events: Sequence[Event]) -> Iterator[bytes]:
        """Yield events, each with its number."""
        for event in events:
            yield named_event(event["type"], {**event, "sequence_number": self._sequence})
            self._sequence += 1

    def _usage(self) -> dict[str, Any]:
        usage = self.answer.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        details = {"cached_tokens": cached, "cache_write_tokens": 0}
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": details,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": usage.completion_tokens_details.model_dump(),
            "total_tokens": usage.total_tokens,
        }


async def respond(service: Service, request: HttpRequest, fields: ResponsesFields) -> Response:
    """Answer a conversation, whole or as a stream.

    Raises:
        Fault: it cannot be served.
    """
    service.engine.require_ready()
    talk, prompt = await begin(service, fields)
    name = new_id("resp", "_")
    answer = talk.submit(service, request, name, prompt, "input")
    tools = fields.tools or ()
    names, custom = call_names(tools, "function"), call_names(tools, "custom")
    writer = ItemWriter(names, custom, fields.wants_sealed)
    work = _Work(service, fields, name, now(), answer, writer)
    if fields.stream:
        return stream(_events(work), service.options, service.engine.probe)
    return JSONResponse(await unless_gone(request, _whole(work)))


async def _whole(work: _Work) -> dict[str, Any]:
    async for _, piece in work.answer.pieces():
        work.writer.add(piece.parts)
    work.writer.end(_status(work))
    return work.ended()


async def _events(work: _Work) -> AsyncIterator[bytes]:
    """Yield the stream of a response; a fault is its last event."""
    pieces = work.answer.pieces()
    try:
        begun = work.response("in_progress")
        names = ("response.created", "response.in_progress")
        for event in work.encoded([{"type": name, "response": begun} for name in names]):
            yield event
        async for _, piece in pieces:
            for event in work.encoded(work.writer.add(piece.parts)):
                yield event
        events = work.writer.end(_status(work))
        ended = work.ended()
        events.append({"type": f"response.{ended['status']}", "response": ended})
        for event in work.encoded(events):
            yield event
    except Fault as fault:
        work.answer.record.finish = str(fault.code)
        failed = {"type": "response.failed", "response": work.failed(fault)}
        for event in work.encoded([failed]):
            yield event
    finally:
        await pieces.aclose()


def _status(work: _Work) -> str:
    (choice,) = work.answer.choices
    return "incomplete" if choice.finish is FinishReason.LENGTH else "completed"
