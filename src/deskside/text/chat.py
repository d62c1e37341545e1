"""A conversation as the prompt that the model was trained on.

Owns DeepSeek-V4's chat format for system, user and assistant turns with thinking and effort.
Control tokens come from here alone: whatever a message says is plain text, also where it spells
one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deskside.errors import CheckpointError, InputError
from deskside.text.chat_options import ChatOptions
from deskside.text.fixed import FixedTexts
from deskside.text.messages import PART_BREAK, Message, Role
from deskside.text.reasoning import END_OF_REASONING, Channel
from deskside.text.tokenizer import BOS, EOS, Tokenizer

__all__ = ["ChatEncoder", "Prompt"]

USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation: exact text, exact ids, and where generated text begins.

    Encoding `text` again gives `ids` unless a message spells a control token.
    """

    text: str
    ids: tuple[int, ...]
    start: Channel


@dataclass(frozen=True, slots=True)
class _Piece:
    """Plain text, or one control token."""

    text: str
    control: bool = False


class ChatEncoder:
    """Renders conversations for one checkpoint. Immutable, and safe to share between threads."""

    __slots__ = ("_controls", "_texts", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, texts: FixedTexts, where: str) -> None:
        """Take a checkpoint's tokenizer and fixed texts.

        Raises:
            CheckpointError: the tokenizer lacks a control token of the format; names `where`.
        """
        for name in (USER, ASSISTANT, THINK, END_OF_REASONING):
            if name not in tokenizer.controls:
                raise CheckpointError(
                    f"{where}: control token {name} is missing, so there is no chat; "
                    "get the tokenizer of the 0731 checkpoint"
                )
        self._tokenizer = tokenizer
        self._texts = texts
        names = sorted(tokenizer.controls, key=len, reverse=True)
        self._controls = re.compile(f"({'|'.join(map(re.escape, names))})")

    @staticmethod
    def open(folder: Path, tokenizer: Tokenizer) -> "ChatEncoder":
        """Read the fixed texts of a checkpoint folder.

        Raises:
            CheckpointError: the encoder file is damaged, or a control token is missing.
        """
        return ChatEncoder(tokenizer, FixedTexts.open(folder), str(folder / "tokenizer.json"))

    def render(self, messages: Sequence[Message], options: ChatOptions) -> Prompt:
        """Return the prompt that lets the model speak next.

        Raises:
            InputError: there is no message, or the effort needs a text that is not there.
        """
        if not messages:
            raise InputError("messages must hold at least one message")
        pieces = list(_merged(self._script(_turns(messages), options)))
        controls = self._tokenizer.controls
        ids: list[int] = []
        for piece in pieces:
            if piece.control:
                ids.append(controls[piece.text])
            else:
                ids += self._tokenizer.encode_plain(piece.text)
        return Prompt("".join(piece.text for piece in pieces), tuple(ids), _start(pieces))

    def _script(self, messages: Sequence[Message], options: ChatOptions) -> Iterator[_Piece]:
        """Yield what stands in the prompt, in order."""
        last_user = max((n for n, m in enumerate(messages) if m.role is Role.USER), default=-1)
        yield _Piece(BOS, control=True)
        if options.thinking:
            yield from self._fixed(self._texts.effort(options.effort))
        for place, message in enumerate(messages):
            thinks = options.thinking and (options.keep_reasoning or place > last_user)
            yield from _turn(message, thinks)
            follows = messages[place + 1].role if place + 1 < len(messages) else None
            if message.role is Role.USER and follows is Role.ASSISTANT:
                yield from _opening(thinks or (options.thinking and place == last_user))
        if not messages[-1].prefix:
            yield from _opening(options.thinking)

    def _fixed(self, text: str) -> Iterator[_Piece]:
        """Yield a text of the checkpoint's own; control tokens in it are meant."""
        for place, part in enumerate(self._controls.split(text)):
            yield _Piece(part, control=place % 2 == 1)


def _turns(messages: Sequence[Message]) -> list[Message]:
    """Make one turn of user messages in a row: the format has no other way to tell them apart."""
    turns: list[Message] = []
    for message in messages:
        if turns and message.role is Role.USER and turns[-1].role is Role.USER:
            joined = turns[-1].content + PART_BREAK + message.content
            turns[-1] = Message(Role.USER, joined)
        else:
            turns.append(message)
    return turns


def _merged(pieces: Iterator[_Piece]) -> Iterator[_Piece]:
    """Join neighbouring texts, because tokens reach over the seam."""
    text = ""
    for piece in pieces:
        if not piece.control:
            text += piece.text
            continue
        if text:
            yield _Piece(text)
        text = ""
        yield piece
    if text:
        yield _Piece(text)


def _turn(message: Message, thinks: bool) -> Iterator[_Piece]:
    """Yield one message; `thinks` says whether an assistant's reasoning is shown."""
    if message.role is Role.USER:
        yield _Piece(USER, control=True)
    if message.role is Role.ASSISTANT and thinks:
        yield _Piece(message.reasoning)
        yield _Piece(END_OF_REASONING, control=True)
    yield _Piece(message.content)
    if message.role is Role.ASSISTANT and not message.prefix:
        yield _Piece(EOS, control=True)


def _opening(thinking: bool) -> Iterator[_Piece]:
    yield _Piece(ASSISTANT, control=True)
    yield _Piece(THINK if thinking else END_OF_REASONING, control=True)


def _start(pieces: Sequence[_Piece]) -> Channel:
    """Say whether the prompt ends inside an open thought."""
    markers = [p.text for p in pieces if p.control and p.text in (THINK, END_OF_REASONING)]
    return Channel.REASONING if markers and markers[-1] == THINK else Channel.CONTENT
