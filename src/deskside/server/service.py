"""What every route of one service shares: the engine, the tokenizer, names and options."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from deskside.config.server import ServerOptions
from deskside.core import Constraint
from deskside.errors import CheckpointError, InputError
from deskside.server import faults
from deskside.server.engine import RemoteEngine
from deskside.server.metrics import Metrics
from deskside.text.chat import ChatEncoder, Prompt
from deskside.text.chat_options import ChatOptions
from deskside.text.guide import Guides
from deskside.text.kept import KeptIds
from deskside.text.messages import Message
from deskside.text.tokenizer import Tokenizer

__all__ = ["Service", "new_call_id", "new_id", "now"]

INLINE = 4096
"""Characters up to which a text is encoded in the event loop: a thread costs more."""

T = TypeVar("T")


def new_id(prefix: str, joint: str = "-") -> str:
    """Return an id that nothing else has."""
    return f"{prefix}{joint}{secrets.token_hex(12)}"


def new_call_id() -> str:
    """Return an id that no other call of a tool has."""
    return new_id("call", "_")


@dataclass(frozen=True, slots=True)
class Service:
    """One service; nothing in it changes but the engine's state and the metrics."""

    engine: RemoteEngine
    tokenizer: Tokenizer
    chat: ChatEncoder | CheckpointError
    """What renders conversations, or why nothing does."""
    guides: Guides
    """Judge grammars before a request is queued."""
    metrics: Metrics
    options: ServerOptions
    model: str
    """Name by which clients call it."""
    fingerprint: str
    """Names the build."""
    version: str
    created: int
    """Seconds since 1970 at which the service started."""
    kept: KeptIds | None = None
    """Answers that were given; None encodes every text anew."""

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model.

        Raises:
            Fault: 404 `model_not_found`.
        """
        if name is not None and name != self.model and not self.options.any_model_name:
            raise faults.model_not_found(name, self.model)

    async def check_constraint(self, constraint: Constraint | None, field: str) -> None:
        """Refuse a constraint that no text can be held to; it is compiled in a thread.

        Raises:
            InputError: the grammar is none, or too large; names the field first.
        """
        if constraint is None:
            return
        try:
            await asyncio.to_thread(self.guides.begin, constraint)
        except InputError as error:
            raise InputError(f"{field}: {error}") from error

    async def encode(self, text: str, encode: Callable[[str], T]) -> T:
        """Encode a text, in a thread where it is long, so that other streams go on."""
        if len(text) <= INLINE:
            return encode(text)
        return await asyncio.to_thread(encode, text)

    async def render(
        self, messages: Sequence[Message], options: ChatOptions, characters: int
    ) -> Prompt:
        """Return the prompt of a conversation with about so many characters.

        Raises:
            InputError: it cannot be encoded.
        """
        if isinstance(self.chat, CheckpointError):
            raise InputError(f"this checkpoint has no chat: {self.chat}")
        if characters <= INLINE:
            return self.chat.render(messages, options, self.kept)
        return await asyncio.to_thread(self.chat.render, messages, options, self.kept)

    async def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, as a raw completion shows it."""
        if len(tokens) <= INLINE:
            return self.tokenizer.decode(tokens)
        return await asyncio.to_thread(self.tokenizer.decode, tokens)


def now() -> int:
    """Return seconds since 1970, whole."""
    return int(time.time())
