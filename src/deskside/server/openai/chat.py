"""POST /v1/chat/completions: a conversation, answered; and /render, which shows its prompt."""

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from deskside import core
from deskside.errors import InputError
from deskside.server import faults
from deskside.server.faults import Fault
from deskside.server.openai.answer import Answer, Choice, Piece, finish_of
from deskside.server.openai.fields import SamplingFields
from deskside.server.openai.logprobs import chat_logprobs
from deskside.server.openai.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    TokenLogprobs,
)
from deskside.server.record import record_of
from deskside.server.service import Service, new_id, now
from deskside.server.stream import DONE, event, fault_event, stream, unless_gone
from deskside.text.answer import AnswerStream
from deskside.text.chat import Prompt
from deskside.text.chat_options import ChatOptions, read_options
from deskside.text.messages import read_messages
from deskside.text.reasoning import Channel

__all__ = ["ChatFields", "Rendered", "chat", "render"]

MOST_MESSAGES = 10_000


class ChatFields(SamplingFields):
    """A request to answer a conversation."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=core.MOST_LOGPROBS)
    reasoning_effort: str | None = Field(None, max_length=100)
    thinking: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check_fields(self) -> None:
        """Refuse what cannot be obeyed.

        Raises:
            Fault: names the field.
        """
        super().check_fields()
        if self.top_logprobs is not None and not self.logprobs:
            raise faults.bad_request("top_logprobs needs logprobs to be true", "top_logprobs")
        if self.max_tokens == 0:
            raise faults.bad_request("max_tokens must be at least 1", "max_tokens")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            told = "max_tokens and max_completion_tokens differ; send one of them"
            raise faults.bad_request(told, "max_completion_tokens")

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer, if the client said so."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def options(self) -> ChatOptions:
        """Return how the conversation is to be continued.

        Raises:
            InputError: a field has an unknown value; its name comes first.
        """
        return read_options(self.reasoning_effort, self.thinking, self.chat_template_kwargs)


class Rendered(BaseModel):
    """The exact prompt of a conversation."""

    prompt: str
    tokens: list[int]
    count: int
    starts_in: Literal["reasoning", "content"]


@dataclass(slots=True)
class _Message:
    """A whole answer, as it is collected."""

    texts: dict[Channel, list[str]] = field(
        default_factory=lambda: {channel: [] for channel in Channel}
    )
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def add(self, parts: Sequence[tuple[Channel, str]]) -> None:
        """Add text."""
        for channel, text in parts:
            self.texts[channel].append(text)

    def text(self, channel: Channel) -> str:
        """Return all text of a channel."""
        return "".join(self.texts[channel])


@dataclass(frozen=True, slots=True)
class _Work:
    """A checked request and its prompt."""

    service: Service
    fields: ChatFields
    name: str
    created: int
    prompt: Prompt

    def requests(self) -> list[core.Request]:
        """Return one sequence for each choice."""
        facts = self.service.engine.require_ready()
        most = self.fields.limit
        if most is None:
            room = min(facts.kv_tokens, facts.max_positions) - len(self.prompt.ids)
            most = max(1, min(self.service.options.default_max_tokens, room))
        logprobs = (self.fields.top_logprobs or 0) if self.fields.logprobs else None
        params = self.fields.params(most, facts.vocab, logprobs, self.prompt.start.stop_after)
        return [
            core.Request(self.prompt.ids, params, place) for place in range(self.fields.choices)
        ]

    def chunk(self, choice: ChatChunkChoice | None, **usage: Any) -> bytes:
        """Return a chunk as an event."""
        if self.fields.includes_usage:
            usage.setdefault("usage", None)
        return event(
            ChatChunk(
                id=self.name,
                object="chat.completion.chunk",
                created=self.created,
                model=self.service.model,
                system_fingerprint=self.service.fingerprint,
                choices=[] if choice is None else [choice],
                **usage,
            )
        )


async def render(service: Service, fields: ChatFields) -> Rendered:
    """Return the prompt that a request leads to.

    Raises:
        Fault: the conversation cannot be encoded.
    """
    service.check_model(fields.model)
    fields.check_fields()
    prompt = await _prompt(service, fields)
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
    service.check_model(fields.model)
    fields.check_fields()
    service.engine.require_ready()
    name = new_id("chatcmpl")
    work = _Work(service, fields, name, now(), await _prompt(service, fields))
    record = record_of(request.scope)
    record.name, record.prompt_tokens = name, len(work.prompt.ids)
    sequences = work.requests()
    ticket = service.engine.submit(name, sequences, "messages")
    bytes_of = service.tokenizer.text_bytes
    choices = [
        Choice(
            len(s.prompt),
            AnswerStream(bytes_of, work.prompt.start, s.params.stop, s.params.min_tokens),
        )
        for s in sequences
    ]
    answer = Answer(service, ticket, choices, record)
    if fields.stream:
        return stream(_events(work, answer), service.options)
    body = await unless_gone(request, _whole(work, answer))
    return Response(body.model_dump_json(), media_type="application/json")


async def _prompt(service: Service, fields: ChatFields) -> Prompt:
    try:
        messages = read_messages(fields.messages)
        characters = sum(len(message.content) + len(message.reasoning) for message in messages)
        return await service.render(messages, fields.options(), characters)
    except InputError as error:
        raise faults.of_input(error, _param(str(error))) from error


def _param(message: str) -> str:
    """Return the field that a refusal names first."""
    if message.startswith("reasoning effort"):
        return "reasoning_effort"
    named = re.split(r"[ .\[:]", message, maxsplit=1)[0]
    return named if named in ChatFields.model_fields else "messages"


async def _whole(work: _Work, answer: Answer) -> ChatCompletion:
    """Collect all choices."""
    messages = [_Message() for _ in answer.choices]
    async for place, piece in answer.pieces():
        messages[place].add(piece.parts)
        if work.fields.logprobs:
            messages[place].logprobs += chat_logprobs(work.service.tokenizer, piece).content
    return ChatCompletion(
        id=work.name,
        object="chat.completion",
        created=work.created,
        model=work.service.model,
        system_fingerprint=work.service.fingerprint,
        choices=[_choice(work, answer, place, said) for place, said in enumerate(messages)],
        usage=answer.usage(),
    )


def _choice(work: _Work, answer: Answer, place: int, message: _Message) -> ChatChoice:
    reason = answer.choices[place].finish
    assert reason is not None, "pieces end when every choice has"
    thought = message.text(Channel.REASONING) or None
    return ChatChoice(
        index=place,
        message=ChatMessage(
            content=message.text(Channel.CONTENT), reasoning_content=thought, reasoning=thought
        ),
        logprobs=ChatLogprobs(content=message.logprobs) if work.fields.logprobs else None,
        finish_reason=finish_of(reason),
        seed=answer.ticket.seeds.get(place),
    )


async def _events(work: _Work, answer: Answer) -> AsyncIterator[bytes]:
    """Yield the stream of an answer; a fault is its last event."""
    pieces = answer.pieces()
    try:
        for place in range(len(answer.choices)):
            yield _delta(work, place, ChatDelta(role="assistant", content=""))
        async for place, piece in pieces:
            for delta in _deltas(work, piece):
                yield _delta(work, place, *delta)
            if piece.finish is not None:
                yield work.chunk(
                    ChatChunkChoice(
                        index=place,
                        delta=ChatDelta(),
                        finish_reason=finish_of(piece.finish),
                        seed=answer.ticket.seeds.get(place),
                    )
                )
        if work.fields.includes_usage:
            yield work.chunk(None, usage=answer.usage())
        yield DONE
    except Fault as fault:
        answer.record.finish = str(fault.code)
        yield fault_event(fault)
    finally:
        await pieces.aclose()


def _deltas(work: _Work, piece: Piece) -> list[tuple[ChatDelta, ChatLogprobs | None]]:
    """Return what a piece adds; its log probabilities go with the first part."""
    found: list[tuple[ChatDelta, ChatLogprobs | None]] = [
        (
            ChatDelta(reasoning_content=text, reasoning=text)
            if channel is Channel.REASONING
            else ChatDelta(content=text),
            None,
        )
        for channel, text in piece.parts
    ]
    if work.fields.logprobs:
        first = found[0][0] if found else ChatDelta(content="")
        found[:1] = [(first, chat_logprobs(work.service.tokenizer, piece))]
    return found


def _delta(
    work: _Work, place: int, delta: ChatDelta, logprobs: ChatLogprobs | None = None
) -> bytes:
    return work.chunk(
        ChatChunkChoice(index=place, delta=delta, logprobs=logprobs, finish_reason=None)
    )
