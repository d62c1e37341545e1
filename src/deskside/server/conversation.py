"""A conversation to be continued, by whichever API it came: prompt, sequences, and their answer.

Owns what chat, messages and responses have in common before the first token. Knows no shape of a
request or a reply.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request as HttpRequest

from deskside import core
from deskside.server.openai.answer import Answer, Choice
from deskside.server.openai.fields import SamplingFields
from deskside.server.record import record_of
from deskside.server.service import Service
from deskside.text.answer import AnswerStream
from deskside.text.chat import Prompt
from deskside.text.chat_options import ChatOptions
from deskside.text.messages import Message

__all__ = ["Conversation"]


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

    async def prompt(self, service: Service) -> Prompt:
        """Return the prompt.

        Raises:
            InputError: it cannot be encoded; names the field first.
        """
        characters = sum(message.characters for message in self.messages)
        characters += sum(len(tool.line) for tool in self.options.tools)
        return await service.render(self.messages, self.options, characters)

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
        sequences = self._sequences(service, prompt)
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
            )
            for sequence in sequences
        ]
        return Answer(service, ticket, choices, record)

    def _sequences(self, service: Service, prompt: Prompt) -> list[core.Request]:
        facts = service.engine.require_ready()
        most = self.limit
        if most is None:
            room = min(facts.kv_tokens, facts.max_positions) - len(prompt.ids)
            most = max(1, min(service.options.default_max_tokens, room))
        params = self.sampling.params(most, facts.vocab, self.logprobs, prompt.start.stop_after)
        return [core.Request(prompt.ids, params, at) for at in range(self.sampling.choices)]
