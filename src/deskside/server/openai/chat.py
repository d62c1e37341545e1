"""POST /v1/chat/completions: a conversation, answered; and /render, which shows its prompt."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from deskside import core
from deskside.errors import InputError
from deskside.server import faults
from deskside.server.conversation import Conversation
from deskside.server.faults import Fault
from deskside.server.openai.answer import Answer, Choice, Piece, finish_of
from deskside.server.openai.fields import SamplingFields
from deskside.server.openai.logprobs import chat_logprobs
from deskside.server.openai.replies import (
    CallingMessage,
    ChatCall,
    ChatCallDelta,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatFinish,
    ChatFunction,
    ChatLogprobs,
    ChatMessage,
    TokenLogprobs,
    Usage,
)
from deskside.server.service import Service, new_call_id, new_id, now
from deskside.server.stream import DONE, event, fault_event, stream, unless_gone
from deskside.text.answer import Part
from deskside.text.chat import Prompt
from deskside.text.chat_options import read_budget, read_options
from deskside.text.messages import read_messages
from deskside.text.reasoning import Channel
from deskside.text.tools import ToolCall, offered, read_tools

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
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    thinking_budget: int | None = Field(None, ge=1, lt=2**31)
    repetition_guard: int | None = Field(None, ge=0, le=1000)

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

    def conversation(self) -> Conversation:
        """Return what was said, and how to go on.

        Raises:
            InputError: a field has an unknown value; its name comes first.
        """
        options = read_options(self.reasoning_effort, self.thinking, self.chat_template_kwargs)
        tools = offered(read_tools(self.tools), self.tool_choice)
        return Conversation(
            read_messages(self.messages),
            replace(options, tools=tools),
            self,
            self.limit,
            (self.top_logprobs or 0) if self.logprobs else None,
            parallel=self.parallel_tool_calls is not False,
            budget=read_budget(self.thinking, self.thinking_budget),
            guard=self.repetition_guard,
        )


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
    calls: list[ChatCall] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def add(self, parts: Sequence[Part]) -> None:
        """Add text and calls."""
        for part in parts:
            if isinstance(part, ToolCall):
                self.calls.append(ChatCall(id=new_call_id(), function=_function(part)))
            else:
                self.texts[part[0]].append(part[1])

    def text(self, channel: Channel) -> str:
        """Return all text of a channel."""
        return "".join(self.texts[channel])


@dataclass(frozen=True, slots=True)
class _Work:
    """A checked request."""

    service: Service
    fields: ChatFields
    name: str
    created: int

    def chunk(self, choice: ChatChunkChoice | None, usage: Usage | None = None) -> bytes:
        """Return a chunk as an event."""
        counts = {"usage": usage} if self.fields.includes_usage else {}
        return event(
            ChatChunk(
                id=self.name,
                object="chat.completion.chunk",
                created=self.created,
                model=self.service.model,
                system_fingerprint=self.service.fingerprint,
                choices=[] if choice is None else [choice],
                **counts,
            )
        )


async def render(service: Service, fields: ChatFields) -> Rendered:
    """Return the prompt that a request leads to.

    Raises:
        Fault: the conversation cannot be encoded.
    """
    service.check_model(fields.model)
    fields.check_fields()
    _, prompt = await _begin(service, fields)
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
    talk, prompt = await _begin(service, fields)
    work = _Work(service, fields, new_id("chatcmpl"), now())
    answer = talk.submit(service, request, work.name, prompt, "messages")
    if fields.stream:
        return stream(_events(work, answer), service.options, service.engine.probe)
    body = await unless_gone(request, _whole(work, answer))
    return Response(body.model_dump_json(), media_type="application/json")


async def _begin(service: Service, fields: ChatFields) -> tuple[Conversation, Prompt]:
    try:
        talk = fields.conversation()
        return talk, await talk.prompt(service)
    except InputError as error:
        raise faults.of_input(error, _param(str(error))) from error


def _param(message: str) -> str:
    """Return the field that a refusal names first."""
    if message.startswith("reasoning effort"):
        return "reasoning_effort"
    return faults.field_of(message, ChatFields.model_fields, "messages")


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
    thought, content = message.text(Channel.REASONING) or None, message.text(Channel.CONTENT)
    said = (
        CallingMessage(
            content=content or None,
            reasoning_content=thought,
            reasoning=thought,
            tool_calls=message.calls,
        )
        if message.calls
        else ChatMessage(content=content, reasoning_content=thought, reasoning=thought)
    )
    return ChatChoice(
        index=place,
        message=said,
        logprobs=ChatLogprobs(content=message.logprobs) if work.fields.logprobs else None,
        finish_reason=_finish(answer.choices[place]),
        seed=answer.ticket.seeds.get(place),
    )


def _finish(choice: Choice) -> ChatFinish:
    assert choice.finish is not None, "pieces end when every choice has"
    if choice.calls and choice.finish is core.FinishReason.STOP:
        return "tool_calls"
    return finish_of(choice.finish)


def _function(call: ToolCall) -> ChatFunction:
    return ChatFunction(name=call.name, arguments=call.arguments)


async def _events(work: _Work, answer: Answer) -> AsyncIterator[bytes]:
    """Yield the stream of an answer; a fault is its last event."""
    pieces = answer.pieces()
    try:
        for place in range(len(answer.choices)):
            yield _delta(work, place, ChatDelta(role="assistant", content=""))
        async for place, piece in pieces:
            usage = answer.usage() if work.fields.counts_always else None
            for delta, logprobs in _deltas(work, piece, answer.choices[place].calls):
                yield _delta(work, place, delta, logprobs, usage)
            if piece.finish is not None:
                yield work.chunk(
                    ChatChunkChoice(
                        index=place,
                        delta=ChatDelta(),
                        finish_reason=_finish(answer.choices[place]),
                        seed=answer.ticket.seeds.get(place),
                    ),
                    usage,
                )
        if work.fields.includes_usage:
            yield work.chunk(None, answer.usage())
        yield DONE
    except Fault as fault:
        answer.record.finish = str(fault.code)
        yield fault_event(fault)
    finally:
        await pieces.aclose()


def _deltas(work: _Work, piece: Piece, calls: int) -> list[tuple[ChatDelta, ChatLogprobs | None]]:
    """Return what a piece adds; its log probabilities go with the first part.

    `calls` counts those of the answer, the piece's own among them.
    """
    index = calls - sum(isinstance(part, ToolCall) for part in piece.parts)
    found: list[tuple[ChatDelta, ChatLogprobs | None]] = []
    for part in piece.parts:
        if isinstance(part, ToolCall):
            call = ChatCallDelta(
                index=index, id=new_call_id(), type="function", function=_function(part)
            )
            found.append((ChatDelta(tool_calls=[call]), None))
            index += 1
        elif part[0] is Channel.REASONING:
            found.append((ChatDelta(reasoning_content=part[1], reasoning=part[1]), None))
        else:
            found.append((ChatDelta(content=part[1]), None))
    if work.fields.logprobs:
        first = found[0][0] if found else ChatDelta(content="")
        found[:1] = [(first, chat_logprobs(work.service.tokenizer, piece))]
    return found


def _delta(
    work: _Work,
    place: int,
    delta: ChatDelta,
    logprobs: ChatLogprobs | None = None,
    usage: Usage | None = None,
) -> bytes:
    choice = ChatChunkChoice(index=place, delta=delta, logprobs=logprobs, finish_reason=None)
    return work.chunk(choice, usage)
