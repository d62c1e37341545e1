"""A conversation to be continued, by whichever API it came: prompt, sequences, and their answer.

Owns what chat, messages and responses have in common before the first token. Knows no shape of a
request or a reply.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from starlette.requests import Request as HttpRequest

from deskside import core
from deskside.errors import InputError
from deskside.server import faults
from deskside.server.faults import Fault
from deskside.server.openai.answer import Answer, Choice
from deskside.server.openai.fields import SamplingFields
from deskside.server.record import record_of
from deskside.server.service import Service
from deskside.text.answer import AnswerStream
from deskside.text.call_grammar import answer_or_calls_grammar, calls_grammar
from deskside.text.chat import Prompt
from deskside.text.chat_options import ChatOptions
from deskside.text.messages import Message
from deskside.text.reasoning import END_OF_REASONING, Channel
from deskside.text.response_format import AnswerForm
from deskside.text.tools import OPEN, Tool

__all__ = ["Conversation", "TalkFields", "begin"]

GUARD = "repetition_guard"
END_TOKENS = (END_OF_REASONING,)
"""Control tokens that close a thought."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said, and how to go on."""

    messages: Sequence[Message]
    options: ChatOptions
    sampling: SamplingFields
    limit: int | None = None
    """Most tokens of an answer; None takes what the service gives."""
    logprobs: int | None = None
    parallel: bool = True
    """Whether more than one call is told."""
    budget: int | None = None
    """Most tokens of a thought; None takes what the service gives."""
    budget_field: str = "thinking_budget"
    """The request's own name for it."""
    guard: int | None = None
    """Repetitions that close a thought, in the same way."""
    forced: tuple[Tool, ...] = ()
    """Tools of which one has to be called."""
    form: AnswerForm | None = None
    """What an answer has to be that calls none."""

    @property
    def constrained_by(self) -> str:
        """The field that constrains the answer."""
        return "tools" if self.forced or self.form is None else self.form.field

    async def prompt(self, service: Service) -> Prompt:
        """Return the prompt.

        Raises:
            InputError: it cannot be encoded; names the field first.
        """
        characters = sum(message.characters for message in self.messages)
        characters += sum(len(tool.line) for tool in self.options.tools)
        options = self.options
        if self.form is not None and not self.forced:
            options = replace(options, schema=self.form.schema)
            characters += len(self.form.grammar)
        prompt = await service.render(self.messages, options, characters)
        if self.forced and self.budget is None:
            prompt = prompt.without_thought(service.tokenizer.controls[END_OF_REASONING])
        return prompt

    def constraint(self, prompt: Prompt) -> core.Constraint | None:
        """Return what the answer has to be: a call, or the form that is asked for, or a call.

        It begins behind the thought, in which no call begins then.

        Raises:
            InputError: the tools cannot be kept to; names the field first.
        """
        grammar = self._grammar()
        if grammar is None:
            return None
        if prompt.start is not Channel.REASONING:
            return core.Constraint(grammar)
        return core.Constraint(grammar, END_OF_REASONING, (OPEN,) if self.options.tools else ())

    def _grammar(self) -> str | None:
        single, tools = not self.parallel, self.options.tools
        if self.forced:
            return calls_grammar(self.forced, single=single)
        if self.form is None or not tools:
            return None if self.form is None else self.form.grammar
        if self.form.schema is None:
            told = "a regex or a grammar cannot go with tools that may be called; use tool_choice"
            raise InputError(f"{self.form.field}: {told} none")
        return answer_or_calls_grammar(self.form.schema, tools, single=single)

    def submit(
        self, service: Service, request: HttpRequest, name: str, prompt: Prompt, param: str
    ) -> Answer:
        """Queue a sequence for each choice.

        Args:
            service: what answers.
            request: what the record belongs to.
            name: of the request.
            prompt: from `prompt`.
            param: the field that conversations come from.

        Raises:
            Fault: it cannot be served.
        """
        record = record_of(request.scope)
        record.name, record.prompt_tokens = name, len(prompt.ids)
        try:
            sequences = self._sequences(service, prompt)
        except InputError as error:
            named = faults.field_of(str(error), (GUARD, "ignore_eos"), self.budget_field)
            raise faults.of_input(error, named) from error
        ticket = service.engine.submit(name, sequences, param)
        choices = [
            Choice(
                len(sequence.prompt),
                AnswerStream(
                    service.tokenizer.text_bytes,
                    prompt.start,
                    sequence.params.stop,
                    sequence.params.min_tokens,
                    tools=bool(self.options.tools),
                    parallel=self.parallel,
                ),
                trail=prompt.trail,
            )
            for sequence in sequences
        ]
        return Answer(service, ticket, choices, record)

    def _sequences(self, service: Service, prompt: Prompt) -> list[core.Request]:
        facts = service.engine.require_ready()
        most = self.limit
        if most is None:
            room = min(facts.kv_tokens, facts.max_positions) - len(prompt.ids)
            wanted = service.options.default_max_tokens + (self.budget or 0)
            most = max(1, min(wanted, room))
        params = self.sampling.params(most, facts.vocab, self.logprobs, prompt.start.stop_after)
        params = replace(
            params,
            thought=self._thought(service, prompt, most),
            constraint=self.constraint(prompt),
        )
        return [core.Request(prompt.ids, params, at) for at in range(self.sampling.choices)]

    def _thought(self, service: Service, prompt: Prompt, most: int) -> core.Thought | None:
        """Return what closes the thought of an answer of at most so many tokens.

        Raises:
            InputError: the request's own budget leaves no room for an answer.
        """
        if prompt.start is not Channel.REASONING:
            return None
        limit, default = self.budget, service.options.thinking_budget
        if limit is not None and limit + len(END_TOKENS) >= most:
            raise InputError(
                f"thinking_budget leaves no room for an answer: need {limit} + 2 tokens, "
                f"have {most}; lower it or raise max_tokens"
            )
        if limit is None and default is not None:
            limit = max(1, min(default, most // 2))
        repeats = service.options.repetition_guard if self.guard is None else self.guard
        if limit is None and not repeats:
            return None
        close = tuple(service.tokenizer.controls[name] for name in END_TOKENS)
        ends = (END_OF_REASONING, OPEN) if self.options.tools else (END_OF_REASONING,)
        return core.Thought(close, ends, limit, repeats)


class TalkFields(Protocol):
    """A request with a conversation, whichever API it has come by."""

    @property
    def model(self) -> str | None:
        """The model that is meant, if one is named."""
        ...

    def check_fields(self) -> None:
        """Refuse what cannot be obeyed by a Fault that names the field."""
        ...

    def conversation(self) -> Conversation:
        """Return what was said, or raise an InputError that begins with a field's name."""
        ...

    def refusal(self, error: InputError) -> Fault:
        """Return what a client is told of such an error."""
        ...


async def begin(service: Service, fields: TalkFields) -> tuple[Conversation, Prompt]:
    """Check a request and return its conversation with the prompt.

    Raises:
        Fault: another model is meant, a field cannot be obeyed, or nothing can be encoded.
    """
    service.check_model(fields.model)
    fields.check_fields()
    try:
        talk = fields.conversation()
        prompt = await talk.prompt(service)
        await service.check_constraint(talk.constraint(prompt), talk.constrained_by)
        return talk, prompt
    except InputError as error:
        raise fields.refusal(error) from error
