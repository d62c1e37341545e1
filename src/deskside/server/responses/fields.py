"""What a client of OpenAI's responses may send.

Owns the fields, and the refusals that name them. Fields that are not known are ignored with a line
in the log, but what would change the answer and is not served is refused.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from deskside.errors import InputError
from deskside.server import faults
from deskside.server.conversation import Conversation
from deskside.server.faults import Fault
from deskside.server.openai.fields import Objects, SamplingFields
from deskside.server.responses.items import read_input
from deskside.server.responses.offer import chosen, offered_tools
from deskside.text import utf8
from deskside.text.chat_options import ChatOptions, read_options
from deskside.text.messages import Message, Role
from deskside.text.response_format import read_format
from deskside.text.tools import Tool, offered

__all__ = ["ResponsesFields"]

MOST_ITEMS = 10_000
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "background": (None, False),
    "conversation": (None,),
    "previous_response_id": (None, ""),
    "prompt": (None,),
    "truncation": (None, "disabled"),
}
"""Fields that are not served, with the values that ask for nothing."""
STORED = ("conversation", "previous_response_id", "prompt")
"""Fields that name what a service keeps."""

log = logging.getLogger("deskside.requests")


class ResponsesFields(BaseModel):
    """A request to answer a conversation."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str | None = Field(None, max_length=512)
    input: str | Objects = Field(max_length=1 << 26)
    instructions: str | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: Annotated[list[str], Field(fail_fast=True)] | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    stream: bool | None = None
    thinking_budget: int | None = Field(None, ge=1, lt=2**31)

    def check_fields(self) -> None:
        """Refuse what cannot be obeyed, and log what is not looked at.

        Raises:
            Fault: names the field.
        """
        if isinstance(self.input, list) and not 0 < len(self.input) <= MOST_ITEMS:
            raise faults.bad_request(f"input must hold 1 to {MOST_ITEMS} items", "input")
        extra = dict(self.model_extra or {})
        for name, nothing in NEUTRAL.items():
            if extra.pop(name, None) not in nothing:
                why = "nothing is stored here" if name in STORED else "not in this version"
                raise faults.bad_request(f"{name} is not supported: {why}", name.partition(".")[0])
        if extra:
            log.info("fields that are not looked at: %s", repr(sorted(extra))[:200])

    @property
    def wants_sealed(self) -> bool:
        """Whether thoughts come in the form that clients only send back."""
        return "reasoning.encrypted_content" in (self.include or ())

    def conversation(self) -> Conversation:
        """Return what was said, and how to go on.

        Raises:
            InputError: a field has an unknown value; its name comes first.
        """
        sampling = SamplingFields.model_validate(
            {"temperature": self.temperature, "top_p": self.top_p}
        )
        offer = offered(offered_tools(self.tools or ()), chosen(self.tool_choice))
        head: tuple[Message, ...] = ()
        if self.instructions:
            utf8.to_bytes(self.instructions, "instructions")
            head = (Message(Role.SYSTEM, self.instructions),)
        return Conversation(
            (*head, *read_input(self.input)),
            self._options(offer.tools),
            sampling,
            self.max_output_tokens,
            parallel=self.parallel_tool_calls is not False,
            budget=self.thinking_budget,
            forced=offer.forced,
            form=read_format((self.text or {}).get("format"), "text.format"),
        )

    def refusal(self, error: InputError) -> Fault:
        """Return the fault for a conversation that cannot be, with the field that it names."""
        named = faults.field_of(str(error), type(self).model_fields, "input")
        return faults.of_input(error, named)

    def _options(self, tools: tuple[Tool, ...]) -> ChatOptions:
        try:
            found = read_options((self.reasoning or {}).get("effort"))
        except InputError as error:
            raise InputError(f"reasoning.effort: {error}") from error
        return ChatOptions(found.thinking, found.effort, tools=tools)
