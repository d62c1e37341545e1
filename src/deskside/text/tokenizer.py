"""Text to token ids and back, from a checkpoint's tokenizer.json.

Owns the reading of byte-level BPE: which bytes an id stands for, which ids are control tokens, and
that a raw completion starts with the beginning-of-sentence token. Knows no chat format, only how to
keep text from becoming a control token, and no model; only `check` compares the two.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import tokenizers

from deskside.errors import CheckpointError, InputError
from deskside.spec import ModelSpec
from deskside.text import utf8

__all__ = ["BOS", "EOS", "TokenBytes", "Tokenizer"]

# The checkpoint's own spelling: full-width bars and lower one-eighth blocks.
BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"

TokenBytes: TypeAlias = Callable[[int], bytes]
"""What a token adds to the text, as UTF-8 bytes that need not end on a whole character."""


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable characters: character to byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


class Tokenizer:
    """The tokenizer of one checkpoint. Immutable, and safe to share between threads."""

    __slots__ = (
        "_added",
        "_bytes",
        "_inner",
        "_plain",
        "bos",
        "controls",
        "eos",
        "special_ids",
        "vocab_size",
    )

    bos: int
    eos: int
    controls: Mapping[str, int]
    """Ids of all added tokens by name: a prompt's format is written in them, no text is."""
    special_ids: frozenset[int]
    """Ids flagged special: they never show in decoded text."""
    vocab_size: int
    """One more than the highest id, added tokens included."""

    def __init__(self, inner: tokenizers.Tokenizer, where: str = "tokenizer.json") -> None:
        """Take over a loaded tokenizer after checking that bytes survive it.

        Raises:
            CheckpointError: it is not byte-level BPE, cannot spell every byte, lacks the begin
                and end tokens, or makes control tokens of plain text; the message names `where`.
        """
        self._bytes: Mapping[str, int] = _byte_alphabet()
        _check_byte_level(inner, self._bytes, where)
        inner.no_truncation()  # a file may ask for it, and a cut prompt would go unnoticed
        inner.no_padding()
        self._inner = inner
        added = inner.get_added_tokens_decoder()
        self._added = {token: entry.content.encode() for token, entry in added.items()}
        self.controls = {entry.content: token for token, entry in added.items()}
        self._plain = _without_controls(inner, self.controls, self._bytes, where)
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.bos = _control_id(inner, BOS, where)
        self.eos = _control_id(inner, EOS, where)
        self.vocab_size = 1 + max(inner.get_vocab(with_added_tokens=True).values())

    @staticmethod
    def open(folder: Path) -> "Tokenizer":
        """Read `folder`/tokenizer.json.

        Raises:
            CheckpointError: the file is missing or is no byte-level BPE tokenizer.
        """
        path = folder / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path}: is not UTF-8 (byte {error.start})") from error
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing more precise
            raise CheckpointError(f"{path}: is not a tokenizer ({error!s:.120})") from error
        return Tokenizer(inner, str(path))

    def check(self, spec: ModelSpec, where: str) -> None:
        """Refuse a tokenizer that belongs to another model.

        Raises:
            CheckpointError: an id lies outside the model's vocabulary, or begin or end differ.
        """
        if self.vocab_size > spec.vocab:
            raise CheckpointError(
                f"{where}: has ids up to {self.vocab_size - 1}, but vocab_size in config.json is "
                f"{spec.vocab}; both must come from one checkpoint"
            )
        for name, ours, theirs in (("bos", self.bos, spec.bos), ("eos", self.eos, spec.eos)):
            if ours != theirs:
                raise CheckpointError(
                    f"{where}: {name} is id {ours}, but {name}_token_id in config.json is "
                    f"{theirs}; both must come from one checkpoint"
                )

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of `text`, adding none. Control tokens in the text become their ids.

        Raises:
            InputError: the text holds a lone surrogate, so it came from invalid UTF-8.
        """
        utf8.to_bytes(text, "the text")
        return _ids(self._inner, text)

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Return the ids of `text` as text alone: no control token comes out, whatever it spells.

        Raises:
            InputError: the text holds a lone surrogate, so it came from invalid UTF-8.
        """
        utf8.to_bytes(text, "the text")
        return _ids(self._plain, text)

    def prompt(self, text: str) -> tuple[int, ...]:
        """Return the ids of a raw completion: begin of sentence, then the text.

        Raises:
            InputError: the prompt is empty or not valid UTF-8.
        """
        if not text:
            raise InputError("the prompt is empty: there is nothing to continue")
        utf8.to_bytes(text, "the prompt")
        return (self.bos, *self.encode(text))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that `token` stands for, control tokens as their name.

        An id that the tokenizer does not know (a padded vocabulary has some) stands for nothing.
        """
        if token in self._added:
            return self._added[token]
        spelling = self._inner.id_to_token(token)
        if spelling is None:
            return b""
        try:
            return bytes(self._bytes[character] for character in spelling)
        except KeyError:  # an entry of the base vocabulary that is not spelled in bytes
            return spelling.encode()

    def text_bytes(self, token: int) -> bytes:
        """Return what `token` adds to the text a user sees: nothing for special tokens."""
        return b"" if token in self.special_ids else self.token_bytes(token)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of `tokens` without special tokens; broken characters become U+FFFD."""
        return b"".join(map(self.text_bytes, tokens)).decode("utf-8", errors="replace")


def _ids(inner: tokenizers.Tokenizer, text: str) -> tuple[int, ...]:
    """Encode one text as a batch, which lets other threads run meanwhile; `encode` does not."""
    return tuple(inner.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _control_id(inner: tokenizers.Tokenizer, name: str, where: str) -> int:
    token = inner.token_to_id(name)
    if token is None:
        raise CheckpointError(f"{where}: control token {name} is missing")
    return token


def _check_byte_level(inner: tokenizers.Tokenizer, alphabet: Mapping[str, int], where: str) -> None:
    if not isinstance(inner.model, tokenizers.models.BPE) or not isinstance(
        inner.decoder, tokenizers.decoders.ByteLevel
    ):
        raise CheckpointError(f"{where}: must be a byte-level BPE tokenizer (model and decoder)")
    for character, byte in alphabet.items():
        if inner.token_to_id(character) is None:
            raise CheckpointError(f"{where}: byte 0x{byte:02x} has no token, text would be lost")


def _without_controls(
    inner: tokenizers.Tokenizer,
    controls: Mapping[str, int],
    alphabet: Mapping[str, int],
    where: str,
) -> tokenizers.Tokenizer:
    """Return a tokenizer over the same vocabulary and merges that knows no added token.

    Nothing of the model is copied. A control token may also be an entry of the base vocabulary, as
    begin and end are; byte-level text cannot reach it as long as its name is not spelled in bytes.
    """
    for name, token in controls.items():
        if inner.model.token_to_id(name) == token and all(c in alphabet for c in name):
            raise CheckpointError(
                f"{where}: control token {name} is also an entry of the base vocabulary, so that "
                "text could turn into it; get the checkpoint's own tokenizer"
            )
    plain = tokenizers.Tokenizer(inner.model)
    plain.normalizer = inner.normalizer
    plain.pre_tokenizer = inner.pre_tokenizer
    return plain
