"""POST /v1/completions: raw text or token ids, continued."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from deskside import core
from deskside.errors import InputError
from deskside.server import faults
from deskside.server.faults import Fault
from deskside.server.openai.answer import Answer, Choice, Piece, finish_of
from deskside.server.openai.fields import CompletionFields
from deskside.server.openai.logprobs import ListedWriter, joined
from deskside.server.openai.replies import Completion, CompletionChoice, ListedLogprobs, Usage
from deskside.server.record import record_of
from deskside.server.service import Service, new_id, now
from deskside.server.stream import DONE, event, fault_event, stream, unless_gone
from deskside.text.answer import AnswerStream
from deskside.text.reasoning import Channel
from deskside.text.response_format import read_format

__all__ = ["complete"]

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


@dataclass(frozen=True, slots=True)
class _Work:
    """A checked request: its prompts as ids, and the text that each shows first."""

    service: Service
    fields: CompletionFields
    name: str
    created: int
    prompts: Sequence[tuple[int, ...]]
    shown: Sequence[str]

    def completion(
        self, choices: list[CompletionChoice], usage: Usage | None = None, *, counts: bool = True
    ) -> Completion:
        """Return a reply or a chunk; without `counts` it does not speak of usage at all."""
        fields = {"usage": usage} if counts else {}
        return Completion(
            id=self.name,
            object="text_completion",
            created=self.created,
            model=self.service.model,
            system_fingerprint=self.service.fingerprint,
            choices=choices,
            **fields,
        )

    async def requests(self) -> list[core.Request]:
        """Return the sequences: for each prompt its choices, one after the other.

        Raises:
            Fault: the form of the answer cannot be kept.
        """
        facts = self.service.engine.require_ready()
        most = DEFAULT_MAX_TOKENS if self.fields.max_tokens is None else self.fields.max_tokens
        params = self.fields.params(
            most,
            facts.vocab,
            self.fields.logprobs,
            prompt_logprobs=self.fields.scores_prompt,
        )
        try:
            form = read_format(self.fields.response_format)
            constraint = None if form is None else core.Constraint(form.grammar)
            await self.service.check_constraint(constraint, "response_format")
            params = replace(params, constraint=constraint)
        except InputError as error:
            named = faults.field_of(str(error), ("ignore_eos",), "response_format")
            raise faults.of_input(error, named) from error
        return [
            core.Request(prompt, params, choice)
            for prompt in self.prompts
            for choice in range(self.fields.choices)
        ]

    def echoed(self, place: int) -> str:
        """Return what stands before the continuation of a choice."""
        return self.shown[place // self.fields.choices]


async def complete(service: Service, request: HttpRequest, fields: CompletionFields) -> Response:
    """Answer a request, whole or as a stream.

    Raises:
        Fault: it cannot be served.
    """
    service.check_model(fields.model)
    fields.check_fields()
    service.engine.require_room(len(fields.prompts()) * fields.choices)  # before all are encoded
    name = new_id("cmpl")
    prompts, shown = await _read_prompts(service, fields)
    work = _Work(service, fields, name, now(), prompts, shown)
    record = record_of(request.scope)
    record.name, record.prompt_tokens = name, sum(map(len, prompts))
    if fields.max_tokens == 0 and not fields.scores_prompt:
        return _only_echo(work)
    sequences = await work.requests()
    ticket = service.engine.submit(name, sequences, "prompt")
    bytes_of = service.tokenizer.text_bytes
    choices = [
        Choice(
            len(s.prompt),
            AnswerStream(bytes_of, Channel.CONTENT, s.params.stop, s.params.min_tokens),
        )
        for s in sequences
    ]
    answer = Answer(service, ticket, choices, record, len(prompts))
    if fields.stream:
        return stream(_events(work, answer), service.options, service.engine.probe)
    body = await unless_gone(request, _whole(work, answer))
    return Response(body.model_dump_json(), media_type="application/json")


async def _read_prompts(
    service: Service, fields: CompletionFields
) -> tuple[list[tuple[int, ...]], list[str]]:
    """Return the prompts as token ids, and as what an echo shows."""
    ids, shown = [], []
    for prompt in fields.prompts():
        if isinstance(prompt, str):
            try:
                ids.append(await service.encode(prompt, service.tokenizer.prompt))
            except InputError as error:
                raise faults.of_input(error, "prompt") from error
            shown.append(prompt if fields.echo else "")
        else:
            ids.append(tuple(prompt))
            shown.append(await service.text_of(prompt) if fields.echo else "")
    return ids, shown


def _only_echo(work: _Work) -> Response:
    """Answer a request for no token: the prompts alone."""
    facts = work.service.engine.require_ready()
    for prompt in work.prompts:
        if not prompt or max(prompt) >= facts.vocab:
            raise faults.bad_request("the prompt is empty or has unknown token ids", "prompt")
    choices = [
        CompletionChoice(index=index, text=text, finish_reason="length")
        for index, text in enumerate(
            text for text in work.shown for _ in range(work.fields.choices)
        )
    ]
    count = sum(map(len, work.prompts))
    usage = Usage.of(count, 0)
    if not work.fields.stream:
        body = work.completion(choices, usage).model_dump_json()
        return Response(body, media_type="application/json")
    return stream(_echo_events(work, choices, usage), work.service.options)


async def _echo_events(
    work: _Work, choices: Sequence[CompletionChoice], usage: Usage
) -> AsyncIterator[bytes]:
    for choice in choices:
        yield _chunk(work, choice.index, choice.text)
        yield _last_chunk(work, choice.index, "length", None)
    if work.fields.includes_usage:
        yield event(work.completion([], usage))
    yield DONE


async def _whole(work: _Work, answer: Answer) -> Completion:
    """Collect all choices."""
    texts = [[work.echoed(place)] for place in range(len(answer.choices))]
    writers = _writers(work, answer)
    async for place, piece in answer.pieces():
        texts[place].append(piece.text)
        if writers:
            writers[place].add(piece)
    return work.completion(
        [
            CompletionChoice(
                index=place,
                text="".join(texts[place]),
                logprobs=_all_logprobs(writers[place]) if writers else None,
                finish_reason=finish_of(choice.finish) if choice.finish else None,
                seed=answer.ticket.seeds.get(place),
            )
            for place, choice in enumerate(answer.choices)
        ],
        answer.usage(),
    )


async def _events(work: _Work, answer: Answer) -> AsyncIterator[bytes]:
    """Yield the stream of a completion; a fault is its last event."""
    writers = _writers(work, answer)
    pieces = answer.pieces()
    try:
        if work.fields.echo and not work.fields.scores_prompt:
            for place in range(len(answer.choices)):
                yield _chunk(work, place, work.echoed(place))
        async for place, piece in pieces:
            writer = writers[place] if writers else None
            for chunk in _piece_chunks(work, place, piece, writer):
                yield chunk
            if piece.finish is not None:
                seed = answer.ticket.seeds.get(place)
                yield _last_chunk(work, place, finish_of(piece.finish), seed)
        if work.fields.includes_usage:
            yield event(work.completion([], answer.usage()))
        yield DONE
    except Fault as fault:
        answer.record.finish = str(fault.code)
        yield fault_event(fault)
    finally:
        await pieces.aclose()


def _writers(work: _Work, answer: Answer) -> list[ListedWriter]:
    if work.fields.logprobs is None:
        return []
    tokenizer = work.service.tokenizer
    return [
        ListedWriter(
            tokenizer,
            len(work.echoed(place)),
            work.prompts[place // work.fields.choices] if work.fields.scores_prompt else (),
        )
        for place in range(len(answer.choices))
    ]


def _all_logprobs(writer: ListedWriter) -> ListedLogprobs:
    emitted = writer.take()
    return joined(writer.take_prompt(), emitted) if writer.prompt_ready else emitted


def _piece_chunks(
    work: _Work, place: int, piece: Piece, writer: ListedWriter | None
) -> Iterator[bytes]:
    """Yield what a piece adds; a prompt that is scored comes first, when all of it is."""
    if writer is None:
        if piece.text:
            yield _chunk(work, place, piece.text)
        return
    writer.add(piece)
    if writer.prompt_ready:
        yield _chunk(work, place, work.echoed(place), writer.take_prompt())
    if piece.tokens:
        yield _chunk(work, place, piece.text, writer.take())


def _chunk(work: _Work, place: int, text: str, logprobs: ListedLogprobs | None = None) -> bytes:
    choice = CompletionChoice(index=place, text=text, logprobs=logprobs, finish_reason=None)
    return event(work.completion([choice], counts=work.fields.includes_usage))


def _last_chunk(work: _Work, place: int, finish: str, seed: int | None) -> bytes:
    """Return the one chunk of a choice that says why it ended, and no text."""
    choice = CompletionChoice(
        index=place,
        text="",
        logprobs=None,
        finish_reason="length" if finish == "length" else "stop",
        seed=seed,
    )
    return event(work.completion([choice], counts=work.fields.includes_usage))
