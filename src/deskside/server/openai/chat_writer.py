"""The answer to a conversation in the form of OpenAI's chat: whole, or chunk by chunk."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from deskside import core
from deskside.server.faults import Fault
from deskside.server.openai.answer import Answer, Choice, Piece, finish_of
from deskside.server.openai.chat_fields import ChatFields
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
from deskside.server.service import Service, new_call_id
from deskside.server.stream import DONE, event, fault_event
from deskside.text.answer import Part
from deskside.text.reasoning import Channel
from deskside.text.tools import ToolCall

__all__ = ["ChatWork", "events", "whole"]

Told = tuple[ChatDelta, ChatLogprobs | None]


@dataclass(frozen=True, slots=True)
class ChatWork:
    """A request for a conversation that is being answered."""

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


async def whole(work: ChatWork, answer: Answer) -> ChatCompletion:
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


def _choice(work: ChatWork, answer: Answer, place: int, message: _Message) -> ChatChoice:
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


async def events(work: ChatWork, answer: Answer) -> AsyncIterator[bytes]:
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


def _deltas(work: ChatWork, piece: Piece, calls: int) -> list[Told]:
    """Return what a piece adds; its log probabilities go with the first part.

    `calls` counts those of the answer, the piece's own among them.
    """
    index = calls - sum(isinstance(part, ToolCall) for part in piece.parts)
    found: list[Told] = []
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
    work: ChatWork,
    place: int,
    delta: ChatDelta,
    logprobs: ChatLogprobs | None = None,
    usage: Usage | None = None,
) -> bytes:
    choice = ChatChunkChoice(index=place, delta=delta, logprobs=logprobs, finish_reason=None)
    return work.chunk(choice, usage)
