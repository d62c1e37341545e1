"""What a client gets: OpenAI's objects for completions and chat, whole and in chunks."""

from typing import Literal

from pydantic import BaseModel

__all__ = [
    "CallingMessage",
    "ChatCall",
    "ChatCallDelta",
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatDelta",
    "ChatFinish",
    "ChatFunction",
    "ChatLogprobs",
    "ChatMessage",
    "Completion",
    "CompletionChoice",
    "CompletionDetails",
    "Finish",
    "ListedLogprobs",
    "PromptDetails",
    "TokenLogprobs",
    "TopLogprob",
    "Usage",
]

Finish = Literal["stop", "length"]
ChatFinish = Literal["stop", "length", "tool_calls"]


class PromptDetails(BaseModel):
    """Of the prompt's tokens: those that were computed before."""

    cached_tokens: int = 0


class CompletionDetails(BaseModel):
    """Of the output's tokens: reasoning, its end among it, and what was forced to close it."""

    reasoning_tokens: int = 0
    forced_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    """Of the proposals that speculation verified, those that stayed and those that did not."""


class Usage(BaseModel):
    """Counts of tokens; the end token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails

    @staticmethod
    def of(
        prompt: int, output: int, details: CompletionDetails | None = None, cached: int = 0
    ) -> "Usage":
        """Return the counts of a prompt, some of it computed before, and its output."""
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=output,
            total_tokens=prompt + output,
            prompt_tokens_details=PromptDetails(cached_tokens=cached),
            completion_tokens_details=details or CompletionDetails(),
        )


class ListedLogprobs(BaseModel):
    """Log probabilities of a completion, one list for each kind of fact."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One continuation, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: ListedLogprobs | None = None
    finish_reason: Finish | None = None
    seed: int | None = None
    """What its draws followed from; the same seed and choice repeat it."""


class Completion(BaseModel):
    """An answer of /v1/completions, or a chunk of it."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(BaseModel):
    """A token that might have stood in a place."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobs(TopLogprob):
    """A token that stands in a place, and the likeliest ones there."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log probabilities of a chat answer, token by token."""

    content: list[TokenLogprobs]
    refusal: None = None


class ChatFunction(BaseModel):
    """Which function is called, and how: the text of a JSON object."""

    name: str
    arguments: str


class ChatCall(BaseModel):
    """A call that the model makes."""

    id: str
    type: Literal["function"] = "function"
    function: ChatFunction


class ChatCallDelta(BaseModel):
    """A call in a chunk; `index` counts the calls of an answer."""

    index: int
    id: str
    type: Literal["function"]
    function: ChatFunction


class ChatMessage(BaseModel):
    """What the model says."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same as `reasoning_content`: clients know one or the other."""
    refusal: None = None


class CallingMessage(ChatMessage):
    """What the model says where it calls; other messages do not speak of calls at all."""

    tool_calls: list[ChatCall]


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: CallingMessage | ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinish
    seed: int | None = None


class ChatCompletion(BaseModel):
    """An answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(BaseModel):
    """What a chunk adds to a message; absent fields are not sent."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ChatCallDelta] | None = None


class ChatChunkChoice(BaseModel):
    """What a chunk adds to an answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinish | None = None
    seed: int | None = None


class ChatChunk(BaseModel):
    """A chunk of a chat answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
