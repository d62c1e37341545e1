"""What a client may send: the fields of OpenAI's requests that are served, and those that are not.

A field that is not known is ignored with a line in the log, but one that would change the output
and cannot be obeyed is refused by name: silence would be a wrong answer.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from deskside.core import SamplingParams
from deskside.errors import InputError
from deskside.server import faults

__all__ = [
    "MOST_CHOICES",
    "CompletionFields",
    "Objects",
    "SamplingFields",
    "StreamOptions",
    "TokenIds",
]

MOST_CHOICES = 128
MOST_STOPS = 64
LONGEST_STOP = 4096
MOST_ID = 2**31
PIECE = 65_536
"""Token ids that are checked at a time."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "allowed_token_ids": (None,),
    "audio": (None,),
    "bad_words": (None, []),
    "chat_template": (None,),
    "dry_multiplier": (None, 0, 0.0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "grammar": (None, ""),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "include_stop_str_in_output": (None, False),
    "length_penalty": (None, 1, 1.0),
    "logits_processors": (None, []),
    "lora": (None, []),
    "mirostat": (None, 0),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "prompt_embeds": (None,),
    "prompt_logprobs": (None,),
    "repeat_penalty": (None, 1, 1.0),
    "skip_special_tokens": (None, True),
    "structured_outputs": (None,),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_a": (None, 0, 0.0),
    "truncate_prompt_tokens": (None,),
    "typical_p": (None, 1, 1.0),
    "use_beam_search": (None, False),
    "web_search_options": (None,),
    "xtc_probability": (None, 0, 0.0),
}
"""Fields that would change the output and are not served, with the values that ask for nothing."""

log = logging.getLogger("deskside.requests")


def _in_pieces(value: object, check: ValidatorFunctionWrapHandler) -> Any:
    """Check token ids many at a time: one check of a million of them stops all threads."""
    if not isinstance(value, list):
        return check(value)
    for start in range(0, len(value), PIECE):
        piece = value[start : start + PIECE]
        if set(map(type, piece)) == {int} and min(piece) >= 0 and max(piece) < MOST_ID:
            continue
        place, wrong = next((n, one) for n, one in enumerate(piece, start) if not _is_id(one))
        told = "element {place} must be a token id, got {wrong}"
        raise PydanticCustomError("token_id", told, {"place": place, "wrong": f"{wrong!r:.40}"})
    return value


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_ID


Objects: TypeAlias = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
"""Objects that are read elsewhere. Of lists the first wrong element is told, not a million."""
TokenIds: TypeAlias = Annotated[
    list[Annotated[int, Field(ge=0, lt=MOST_ID)]], WrapValidator(_in_pieces)
]
Stop: TypeAlias = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]


class StreamOptions(BaseModel):
    """What a stream carries besides text."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """Whether every chunk of a chat has the counts so far, as vLLM calls it."""


class SamplingFields(BaseModel):
    """The fields that completions and chat share; null means the default."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str | None = Field(None, max_length=512)
    n: int | None = Field(None, ge=1, le=MOST_CHOICES)
    max_tokens: int | None = Field(None, ge=0)
    min_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=MOST_STOPS)] | None = None
    ignore_eos: bool | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def check_fields(self) -> None:
        """Refuse what cannot be obeyed, and log what is not looked at.

        Raises:
            Fault: names the field.
        """
        extra = self.model_extra or {}
        for name, value in extra.items():
            if name in NEUTRAL and value not in NEUTRAL[name]:
                raise faults.bad_request(f"{name} is not supported by this version", name)
        unknown = sorted(name for name in extra if name not in NEUTRAL)
        if unknown:
            log.info("fields that are not looked at: %s", repr(unknown)[:200])
        if self.stream_options is not None and not self.stream:
            raise faults.bad_request("stream_options needs stream to be true", "stream_options")

    @property
    def choices(self) -> int:
        """How many continuations of a prompt are wanted."""
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def counts_always(self) -> bool:
        """Whether every chunk has the counts so far."""
        return self.includes_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )

    def params(
        self,
        max_tokens: int,
        vocab: int,
        logprobs: int | None,
        stop_after: str = "",
        *,
        prompt_logprobs: bool = False,
    ) -> SamplingParams:
        """Return the checked parameters of a sequence.

        Args:
            max_tokens: most tokens to emit.
            vocab: tokens of the model.
            logprobs: likeliest tokens beside each, or None for no log probabilities.
            stop_after: text behind which stop strings count.
            prompt_logprobs: whether the prompt's tokens get log probabilities too.

        Raises:
            Fault: a value lies outside its range; names the field.
        """
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        ends = tuple(self.stop_token_ids or ())
        for token in ends:
            if token >= vocab:
                told = f"token id {token} is not in the vocabulary of {vocab}"
                raise faults.bad_request(told, "stop_token_ids")
        top_k = self.top_k or 0
        try:
            return SamplingParams(
                temperature=_or(self.temperature, 1.0),
                top_p=_or(self.top_p, 1.0),
                top_k=max(top_k, 0),
                max_tokens=max_tokens,
                seed=self.seed,
                stop=tuple(stops),
                stop_token_ids=ends,
                ignore_eos=bool(self.ignore_eos),
                min_p=self.min_p or 0.0,
                presence_penalty=self.presence_penalty or 0.0,
                frequency_penalty=self.frequency_penalty or 0.0,
                repetition_penalty=_or(self.repetition_penalty, 1.0),
                logit_bias=self._biases(vocab),
                min_tokens=self.min_tokens or 0,
                logprobs=logprobs,
                stop_after=stop_after if stops else "",
                prompt_logprobs=prompt_logprobs,
            )
        except InputError as error:
            named = str(error).partition(" ")[0].replace("-", "_")
            raise faults.of_input(
                error, named if named in type(self).model_fields else None
            ) from error

    def _biases(self, vocab: int) -> tuple[tuple[int, float], ...]:
        found: dict[int, float] = {}
        for name, bias in (self.logit_bias or {}).items():
            known = name.isascii() and name.isdigit() and len(name) < 10
            if not known or int(name) >= vocab:
                told = f"logit_bias: {name!r:.40} is no token id below {vocab}"
                raise faults.bad_request(told, "logit_bias")
            found[int(name)] = bias
        return tuple(found.items())


def _kind(prompt: object) -> str:
    """Tell by its first element what a prompt is: trying all kinds on a long one takes a second."""
    if isinstance(prompt, str):
        return "text"
    first = prompt[0] if isinstance(prompt, list) and prompt else None
    if isinstance(first, str):
        return "texts"
    return "lists" if isinstance(first, list) else "ids"


Prompt: TypeAlias = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(fail_fast=True), Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[TokenIds], Field(fail_fast=True), Tag("lists")],
    Discriminator(_kind),
]


class CompletionFields(SamplingFields):
    """A request to continue raw text or token ids."""

    prompt: Prompt
    """A text, several texts, token ids, or several lists of token ids."""
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = Field(None, ge=1, le=MOST_CHOICES)

    @property
    def scores_prompt(self) -> bool:
        """Whether log probabilities of the prompt's own tokens are wanted."""
        return bool(self.echo) and self.logprobs is not None

    def check_fields(self) -> None:
        """Refuse what cannot be obeyed.

        Raises:
            Fault: names the field.
        """
        super().check_fields()
        if self.best_of is not None and self.best_of != self.choices:
            raise faults.bad_request("best_of other than n is not supported", "best_of")
        if self.max_tokens == 0 and not self.echo:
            raise faults.bad_request("max_tokens must be at least 1 without echo", "max_tokens")

    def prompts(self) -> list[str] | list[list[int]]:
        """Return the prompts as a list.

        Raises:
            Fault: there is none.
        """
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise faults.bad_request("the prompt is empty: there is nothing to continue", "prompt")
        if isinstance(prompt[0], int):
            return [prompt]
        return prompt


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
