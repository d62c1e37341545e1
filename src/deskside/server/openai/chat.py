"""POST /v1/chat/completions: a conversation, answered; and /render, which shows its prompt."""

from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from deskside.server.conversation import begin
from deskside.server.openai.chat_fields import ChatFields
from deskside.server.openai.chat_writer import ChatWork, events, whole
from deskside.server.service import Service, new_id, now
from deskside.server.stream import stream, unless_gone
from deskside.text.reasoning import Channel

__all__ = ["Rendered", "chat", "render"]


class Rendered(BaseModel):
    """The exact prompt of a conversation."""

    prompt: str
    tokens: list[int]
    count: int
    starts_in: Literal["reasoning", "content"]


async def render(service: Service, fields: ChatFields) -> Rendered:
    """Return the prompt that a request leads to.

    Raises:
        Fault: the conversation cannot be encoded.
    """
    _, prompt = await begin(service, fields)
    return Rendered(
        prompt=prompt.text,
        tokens=list(prompt.ids),
        count=len(prompt.ids),
        starts_in="reasoning" if prompt.start is Channel.REASONING else "content",
    )


async def chat(service: Service, request: HttpRequest, fields: ChatFields) -> Response:
    """Answer a conversation, whole or as a stream.

    Raises:
        Fault: it cannot be served.
    """
    service.engine.require_ready()
    talk, prompt = await begin(service, fields)
    work = ChatWork(service, fields, new_id("chatcmpl"), now())
    answer = talk.submit(service, request, work.name, prompt, "messages")
    if fields.stream:
        return stream(events(work, answer), service.options, service.engine.probe)
    body = await unless_gone(request, whole(work, answer))
    return Response(body.model_dump_json(), media_type="application/json")
