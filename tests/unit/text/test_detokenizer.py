"""Streaming text equals whole text, however the tokens are cut."""

from hypothesis import given
from hypothesis import strategies as st

from deskside.text.detokenizer import Detokenizer
from deskside.text.tokenizer import Tokenizer

PIECES = st.lists(
    st.one_of(
        st.binary(max_size=5),
        st.text(max_size=3).map(lambda text: text.encode("utf-8", "surrogatepass")),
    )
)


@given(pieces=PIECES, cuts=st.lists(st.integers(0, 4)))
def test_feeds_add_up_to_the_whole(pieces: list[bytes], cuts: list[int]) -> None:
    stream = Detokenizer(pieces.__getitem__)
    text, start = "", 0
    for size in cuts:
        text += stream.feed(range(start, min(start + size, len(pieces))))
        start = min(start + size, len(pieces))
    text += stream.feed(range(start, len(pieces)))
    text += stream.finish()
    assert text == b"".join(pieces).decode("utf-8", errors="replace")


@given(data=st.text(st.characters(exclude_categories=["Cs"])))
def test_valid_text_never_shows_a_replacement(data: str) -> None:
    bytes_ = data.encode()
    stream = Detokenizer(lambda place: bytes_[place : place + 1])
    shown = [stream.feed([place]) for place in range(len(bytes_))]
    assert all(len(text) <= 1 for text in shown)
    assert "".join(shown) == data
    assert stream.finish() == ""


def test_partial_characters_wait() -> None:
    pieces = ["🙂".encode()[:2], "🙂".encode()[2:] + b"!"]
    stream = Detokenizer(pieces.__getitem__)
    assert stream.feed([0]) == ""
    assert stream.feed([1]) == "🙂!"


def test_incomplete_bytes_end_as_one_replacement() -> None:
    stream = Detokenizer(["🙂".encode()[:3]].__getitem__)
    assert stream.feed([0]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_special_tokens_do_not_show(tokenizer: Tokenizer) -> None:
    stream = Detokenizer(tokenizer.text_bytes)
    ids = [*tokenizer.encode("größer 你好"), tokenizer.eos]
    assert "".join(stream.feed([token]) for token in ids) + stream.finish() == "größer 你好"
