"""What a request to answer a conversation may say, and what is made of it."""

from dataclasses import replace
from typing import Any

from pydantic import Field

from deskside import core
from deskside.errors import InputError
from deskside.server import faults
from deskside.server.conversation import Conversation
from deskside.server.faults import Fault
from deskside.server.openai.fields import Objects, SamplingFields
from deskside.text.chat_options import read_budget, read_options
from deskside.text.messages import read_messages
from deskside.text.response_format import read_format
from deskside.text.tools import offered, read_tools

__all__ = ["ChatFields"]

MOST_MESSAGES = 10_000


class ChatFields(SamplingFields):
    """A request to answer a conversation."""

    messages: Objects = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=core.MOST_LOGPROBS)
    reasoning_effort: str | None = Field(None, max_length=100)
    thinking: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Objects | None = None
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
        offer = offered(read_tools(self.tools), self.tool_choice)
        return Conversation(
            read_messages(self.messages),
            replace(options, tools=offer.tools),
            self,
            self.limit,
            (self.top_logprobs or 0) if self.logprobs else None,
            parallel=self.parallel_tool_calls is not False,
            budget=read_budget(self.thinking, self.thinking_budget),
            guard=self.repetition_guard,
            forced=offer.forced,
            form=read_format(self.response_format),
        )

    def refusal(self, error: InputError) -> Fault:
        """Return the fault for a conversation that cannot be, with the field that it names."""
        if str(error).startswith("reasoning effort"):
            return faults.of_input(error, "reasoning_effort")
        named = faults.field_of(str(error), type(self).model_fields, "messages")
        return faults.of_input(error, named)
