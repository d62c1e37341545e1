"""POST /v1/messages: a conversation, answered in the form of Anthropic's API."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from deskside.core import FinishReason
from deskside.server.anthropic.fields import CountFields, MessagesFields
from deskside.server.anthropic.writer import BlockWriter
from deskside.server.conversation import begin
from deskside.server.faults import Fault
from deskside.server.openai.answer import Answer
from deskside.server.service import Service, new_id
from deskside.server.stream import named_event, stream, unless_gone

__all__ = ["answer_messages", "count_tokens"]


@dataclass(frozen=True, slots=True)
class _Work:
    """An answer in the making."""

    service: Service
    name: str
    answer: Answer

    def head(self) -> dict[str, Any]:
        """Return the message before anything is said."""
        return {
            "id": self.name,
            "type": "message",
            "role": "assistant",
            "model": self.service.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self.usage(),
        }

    def usage(self) -> dict[str, int]:
        """Return the counts so far; tokens that were computed before are counted apart."""
        (choice,) = self.answer.choices
        return {
            "input_tokens": choice.prompt_tokens - choice.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": choice.cached,
            "output_tokens": choice.tokens,
        }

    def ending(self) -> dict[str, str | None]:
        """Return why the answer ended."""
        (choice,) = self.answer.choices
        stop = choice.text.stop
        if choice.finish is FinishReason.LENGTH:
            reason = "max_tokens"
        elif stop is not None:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if choice.calls else "end_turn"
        return {"stop_reason": reason, "stop_sequence": stop if reason == "stop_sequence" else None}


async def count_tokens(service: Service, fields: CountFields) -> dict[str, int]:
    """Return how long the prompt of a conversation is.

    Raises:
        Fault: the conversation cannot be encoded.
    """
    _, prompt = await begin(service, fields)
    return {"input_tokens": len(prompt.ids)}


async def answer_messages(
    service: Service, request: HttpRequest, fields: MessagesFields
) -> Response:
    """Answer a conversation, whole or as a stream.

    Raises:
        Fault: it cannot be served.
    """
    service.engine.require_ready()
    talk, prompt = await begin(service, fields)
    name = new_id("msg", "_")
    work = _Work(service, name, talk.submit(service, request, name, prompt, "messages"))
    if fields.stream:
        return stream(_events(work), service.options, service.engine.probe)
    return JSONResponse(await unless_gone(request, _whole(work)))


async def _whole(work: _Work) -> dict[str, Any]:
    writer = BlockWriter()
    async for _, piece in work.answer.pieces():
        writer.add(piece.parts)
    return {**work.head(), "content": writer.blocks, **work.ending()}


async def _events(work: _Work) -> AsyncIterator[bytes]:
    """Yield the stream of an answer; a fault is its last event."""
    pieces = work.answer.pieces()
    writer = BlockWriter()
    try:
        yield named_event("message_start", {"type": "message_start", "message": work.head()})
        yield named_event("ping", {"type": "ping"})
        async for _, piece in pieces:
            for event in writer.add(piece.parts):
                yield named_event(*event)
        for event in writer.end():
            yield named_event(*event)
        body = {"type": "message_delta", "delta": work.ending(), "usage": work.usage()}
        yield named_event("message_delta", body)
        yield named_event("message_stop", {"type": "message_stop"})
    except Fault as fault:
        work.answer.record.finish = str(fault.code)
        yield named_event("error", fault.message_body())
    finally:
        await pieces.aclose()
