"""The tokenizer against the library that it stands on, and against broken files."""

import json
import random
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from deskside.errors import CheckpointError, InputError
from deskside.spec import ModelSpec
from deskside.text.tokenizer import BOS, EOS, Tokenizer


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_encode_then_decode_is_the_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode_plain(text)) == text
    if not any(name in text for name in tokenizer.controls):
        assert tokenizer.encode(text) == tokenizer.encode_plain(text)


@given(ids=st.lists(st.integers(0, 310)))
def test_decode_agrees_with_the_library(
    tokenizer: Tokenizer, inner: tokenizers.Tokenizer, ids: list[int]
) -> None:
    assert tokenizer.decode(ids) == inner.decode(ids, skip_special_tokens=True)


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    """A server encodes beside the loop that serves all other clients."""
    letters = random.Random(3).choices("abcdefghij", k=300_000)
    worker = threading.Thread(target=tokenizer.encode_plain, args=("".join(letters),))
    worker.start()
    turns = 0
    while worker.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 10  # a call that keeps the interpreter to itself leaves one or two


def test_encode_adds_nothing_and_prompt_puts_bos_first(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("def f")
    assert tokenizer.bos not in ids
    assert tokenizer.prompt("def f") == (tokenizer.bos, *ids)


def test_control_tokens(tokenizer: Tokenizer) -> None:
    think = tokenizer.encode("<think>")
    assert len(think) == 1
    assert tokenizer.token_bytes(think[0]) == b"<think>"
    assert tokenizer.decode(think) == "<think>"  # not special: it shows
    assert tokenizer.special_ids == {tokenizer.bos, tokenizer.eos}
    assert tokenizer.token_bytes(tokenizer.eos) == EOS.encode()
    assert tokenizer.text_bytes(tokenizer.eos) == b""
    assert tokenizer.encode(BOS) == (tokenizer.bos,)


def test_every_byte_has_a_token(tokenizer: Tokenizer) -> None:
    seen = {tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)}
    assert {bytes([byte]) for byte in range(256)} <= seen


def test_unknown_ids_add_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_bytes(10**6) == b""


def test_vocab_size_counts_added_tokens(tokenizer: Tokenizer, inner: tokenizers.Tokenizer) -> None:
    assert tokenizer.vocab_size == inner.get_vocab_size(with_added_tokens=True)


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb"])
def test_lone_surrogates_are_refused(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InputError, match=r"the prompt is not valid UTF-8 \(character"):
        tokenizer.prompt(text)
    with pytest.raises(InputError, match="not valid UTF-8"):
        tokenizer.encode(text)


def test_empty_prompt_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="prompt is empty"):
        tokenizer.prompt("")


def test_truncation_in_the_file_does_not_cut_prompts(folder: Path, tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.enable_truncation(4)
    inner.enable_padding(length=64)
    inner.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.open(tmp_path).encode("!" * 9)) == 9


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read \(No such file"):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1", b'{"version": "1.0"}', b"\xff\xfe"])
def test_broken_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is not") as caught:
        Tokenizer.open(tmp_path)
    assert "\n" not in str(caught.value)


def _without_decoder(parts: dict[str, Any]) -> None:
    parts["decoder"] = None


def _without_exclamation(parts: dict[str, Any]) -> None:
    parts["model"]["vocab"]["unused"] = parts["model"]["vocab"].pop("!")


def _without_bos(parts: dict[str, Any]) -> None:
    parts["added_tokens"] = [t for t in parts["added_tokens"] if t["content"] != BOS]
    parts["model"]["vocab"]["unused"] = parts["model"]["vocab"].pop(BOS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_decoder, "must be a byte-level BPE tokenizer"),
        (_without_exclamation, "byte 0x21 has no token"),
        (_without_bos, "begin▁of▁sentence.* is missing"),
    ],
)
def test_unfit_tokenizers(folder: Path, tmp_path: Path, change: Any, message: str) -> None:
    parts = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    change(parts)
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.open(tmp_path)


def _spec(vocab: int, bos: int, eos: int) -> ModelSpec:
    return cast("ModelSpec", SimpleNamespace(vocab=vocab, bos=bos, eos=eos))


def test_check_compares_with_the_model(tokenizer: Tokenizer) -> None:
    size, bos, eos = tokenizer.vocab_size, tokenizer.bos, tokenizer.eos
    tokenizer.check(_spec(size + 60, bos, eos), "model")  # a padded vocabulary is fine
    with pytest.raises(CheckpointError, match=r"model: has ids up to .*, but vocab_size"):
        tokenizer.check(_spec(size - 1, bos, eos), "model")
    with pytest.raises(CheckpointError, match=r"model: eos is id 1, but eos_token_id .* is 7"):
        tokenizer.check(_spec(size, bos, 7), "model")
