"""A conversation as the prompt that the model was trained on.

Owns DeepSeek-V4's chat format for system, user, assistant and tool turns with thinking and effort.
Control tokens come from here alone: whatever a message says is plain text, also where it spells
one.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deskside.errors import CheckpointError, InputError
from deskside.text.chat_options import ChatOptions
from deskside.text.fixed import FixedTexts
from deskside.text.kept import START, KeptIds, behind
from deskside.text.messages import PART_BREAK, Message, Role
from deskside.text.reasoning import END_OF_REASONING, Channel
from deskside.text.tokenizer import BOS, EOS, Tokenizer
from deskside.text.tools import DSML, ToolCall, written_calls

__all__ = ["ChatEncoder", "Prompt"]

USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation: exact text, exact ids, and where generated text begins.

    Encoding `text` again gives `ids` unless a message spells a control token, or an answer in it
    was drawn in other tokens. `trail` is a digest of all that is said.
    """

    text: str
    ids: tuple[int, ...]
    start: Channel
    trail: bytes = START

    def without_thought(self, end: int) -> "Prompt":
        """Return the prompt with a thought that it leaves open closed by its end token."""
        if self.start is not Channel.REASONING:
            return self
        trail = behind(self.trail, END_OF_REASONING, control=True)
        return Prompt(self.text + END_OF_REASONING, (*self.ids, end), Channel.CONTENT, trail)


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

    def render(
        self, messages: Sequence[Message], options: ChatOptions, kept: KeptIds | None = None
    ) -> Prompt:
        """Return the prompt that lets the model speak next; answers that were kept have their ids.

        Raises:
            InputError: there is no message, or the effort or the tools need a text or a token that
                is not there.
        """
        if not messages:
            raise InputError("messages must hold at least one message")
        if DSML not in self._tokenizer.controls:
            _refuse_tools(messages, options)
        pieces = list(_merged(self._script(_turns(messages), options)))
        controls = self._tokenizer.controls
        ids: list[int] = []
        trail = START
        for piece in pieces:
            trail = behind(trail, piece.text, control=piece.control)
            if piece.control:
                ids.append(controls[piece.text])
                continue
            found = kept.find(trail) if kept else None
            ids += self._tokenizer.encode_plain(piece.text) if found is None else found
        return Prompt("".join(piece.text for piece in pieces), tuple(ids), _start(pieces), trail)

    def _script(self, messages: Sequence[Message], options: ChatOptions) -> Iterator[_Piece]:
        """Yield what stands in the prompt, in order."""
        last_user = max((n for n, m in enumerate(messages) if m.role is Role.USER), default=-1)
        keeps = options.keep_reasoning or bool(options.tools)
        thinking = self._thinks(options)
        yield _Piece(BOS, control=True)
        if thinking:
            yield from self._fixed(self._texts.effort(options.effort))
        blocks = list(self._blocks(options))
        told = _told_at(messages)
        if told == -1:
            yield from blocks
        for place, message in enumerate(messages):
            thinks = thinking and (keeps or place > last_user)
            yield from _turn(message, thinks)
            if place == told:
                yield from blocks
            follows = messages[place + 1].role if place + 1 < len(messages) else None
            if message.role is Role.USER and follows is Role.ASSISTANT:
                yield from _opening(thinks or (thinking and place == last_user))
        if not messages[-1].prefix:
            yield from _opening(thinking)

    def _thinks(self, options: ChatOptions) -> bool:
        if options.thinking is not None:
            return options.thinking
        return options.effort is not None or self._texts.thinks

    def _blocks(self, options: ChatOptions) -> Iterator[_Piece]:
        """Yield what a system message ends in: the tools, and the form of an answer."""
        if options.tools:
            listed = "\n".join(tool.line for tool in options.tools)
            yield from self._block(self._texts.around_tools(), listed)
        if options.schema is not None and self._texts.form is not None:
            schema = json.dumps(options.schema, ensure_ascii=False)
            yield from self._block(self._texts.form, schema)

    def _block(self, around: tuple[str, str], text: str) -> Iterator[_Piece]:
        yield _Piece(PART_BREAK)
        yield from self._fixed(around[0])
        yield _Piece(text)
        yield from self._fixed(around[1])

    def _fixed(self, text: str) -> Iterator[_Piece]:
        """Yield a text of the checkpoint's own; control tokens in it are meant."""
        for place, part in enumerate(self._controls.split(text)):
            yield _Piece(part, control=place % 2 == 1)


def _refuse_tools(messages: Sequence[Message], options: ChatOptions) -> None:
    if options.tools or any(message.calls for message in messages):
        raise InputError(f"tools: this checkpoint's tokenizer has no token {DSML}; send none")


def _told_at(messages: Sequence[Message]) -> int:
    """Return the place of the message that tells of tools and form; -1 is before all of them."""
    return next((n for n, m in enumerate(messages) if m.role is Role.SYSTEM), -1)


def _turns(messages: Sequence[Message]) -> list[Message]:
    """Make one user's turn of all in a row that answer the assistant, tools among them."""
    turns: list[Message] = []
    row: list[Message] = []
    for message in messages:
        if message.role in (Role.USER, Role.TOOL):
            row.append(message)
            continue
        turns += _answering(row, turns)
        row = []
        turns.append(message)
    return turns + _answering(row, turns)


def _answering(row: Sequence[Message], before: Sequence[Message]) -> list[Message]:
    """Return the one turn of a row; results stand in the order of the calls they answer."""
    if not row:
        return []
    said = next((turn for turn in reversed(before) if turn.role is Role.ASSISTANT), None)
    order = {} if said is None else {call.id: n for n, call in enumerate(said.calls)}
    results = [message for message in row if message.role is Role.TOOL]
    sorted_results = iter(sorted(results, key=lambda result: order.get(result.answers, 0)))
    texts = [
        f"<tool_result>{next(sorted_results).content}</tool_result>"
        if message.role is Role.TOOL
        else message.content
        for message in row
    ]
    return [Message(Role.USER, PART_BREAK.join(texts))]


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
    if message.calls:
        yield from _written(message.calls)
    if message.role is Role.ASSISTANT and not message.prefix:
        yield _Piece(EOS, control=True)


def _written(calls: Sequence[ToolCall]) -> Iterator[_Piece]:
    for place, text in enumerate(written_calls(calls)):
        if place:
            yield _Piece(DSML, control=True)
        yield _Piece(text)


def _opening(thinking: bool) -> Iterator[_Piece]:
    yield _Piece(ASSISTANT, control=True)
    yield _Piece(THINK if thinking else END_OF_REASONING, control=True)


def _start(pieces: Sequence[_Piece]) -> Channel:
    """Say whether the prompt ends inside an open thought."""
    markers = [p.text for p in pieces if p.control and p.text in (THINK, END_OF_REASONING)]
    return Channel.REASONING if markers and markers[-1] == THINK else Channel.CONTENT
