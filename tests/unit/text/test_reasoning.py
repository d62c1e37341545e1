"""Reasoning and answer are told apart wherever the text is cut."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskside.text.reasoning import Channel, ReasoningCounter, ReasoningSplitter
from deskside.text.stops import TextStream

MARKER = "</think>"
TEXTS = st.lists(st.sampled_from([MARKER, "<", "</", "</thin", "think>", ">", "a", "é🙂", "\n"]))


def split(chunks: list[str], start: Channel) -> tuple[str, str]:
    """Return reasoning and content; hold every step against the rules of a stream."""
    splitter = ReasoningSplitter(start)
    shown = {Channel.REASONING: "", Channel.CONTENT: ""}
    read = ""
    for chunk in chunks:
        read += chunk
        for channel, piece in splitter.feed(chunk):
            assert piece
            assert channel is Channel.CONTENT or not shown[Channel.CONTENT]
            shown[channel] += piece
        if splitter.channel is Channel.REASONING:
            waiting = read[len(shown[Channel.REASONING]) :]
            assert len(waiting) < len(MARKER)  # no more is held back than the marker needs
            assert MARKER.startswith(waiting)
    for channel, piece in splitter.finish():
        shown[channel] += piece
    assert splitter.finish() == []
    return shown[Channel.REASONING], shown[Channel.CONTENT]


def whole(text: str, start: Channel) -> tuple[str, str]:
    if start is Channel.CONTENT:
        return "", text
    reasoning, _, content = text.partition(MARKER)
    return reasoning, content


@given(texts=TEXTS, places=st.lists(st.integers(0, 60), max_size=12))
def test_any_cut_gives_the_whole(texts: list[str], places: list[int]) -> None:
    text = "".join(texts)
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    chunks = [text[a:b] for a, b in pairwise(edges)]
    for start in Channel:
        assert split(chunks, start) == whole(text, start)


def test_every_cut_of_one_text() -> None:
    text = f"a<{MARKER}b<"
    inner = range(1, len(text))
    count = 0
    for size in range(len(text)):
        for places in combinations(inner, size):
            edges = [0, *places, len(text)]
            chunks = [text[a:b] for a, b in pairwise(edges)]
            assert split(chunks, Channel.REASONING) == ("a<", "b<")
            count += 1
    assert count == 2 ** (len(text) - 1)


def test_reasoning_that_never_ends_stays_reasoning() -> None:
    assert split(["so </thi"], Channel.REASONING) == ("so </thi", "")
    assert split([], Channel.REASONING) == ("", "")


def test_a_marker_in_the_answer_is_text() -> None:
    assert split([f"a{MARKER}b{MARKER}c"], Channel.REASONING) == ("a", f"b{MARKER}c")
    assert split([f"a{MARKER}b"], Channel.CONTENT) == ("", f"a{MARKER}b")


@given(pieces=st.lists(st.sampled_from([b"</think>", b"</", b"think>", b"a", b"\xf0\x9f", b""])))
def test_tokens_of_reasoning(pieces: list[bytes]) -> None:
    ends = [n for n in range(len(pieces) + 1) if MARKER.encode() in b"".join(pieces[:n])]
    counter = ReasoningCounter(pieces.__getitem__, Channel.REASONING)
    for place in range(len(pieces)):
        counter.feed([place])
    assert counter.tokens == (ends[0] if ends else len(pieces))
    at_once = ReasoningCounter(pieces.__getitem__, Channel.REASONING)
    at_once.feed(range(len(pieces)))
    assert at_once.tokens == counter.tokens
    answer = ReasoningCounter(pieces.__getitem__, Channel.CONTENT)
    answer.feed(range(len(pieces)))
    assert answer.tokens == 0


@pytest.mark.parametrize("cut", range(1, len(MARKER)))
def test_behind_a_stream_of_tokens(cut: int) -> None:
    """Two holds in a row, the stop string's and the marker's, lose and double nothing."""
    tokens = [b"x", MARKER[:cut].encode(), MARKER[cut:].encode() + b"y E", b"N", b"Q"]
    stream = TextStream(tokens.__getitem__, ["END"])
    splitter = ReasoningSplitter(Channel.REASONING)
    shown = [piece for n in range(len(tokens)) for piece in splitter.feed(stream.feed([n]))]
    shown += splitter.feed(stream.finish()) + splitter.finish()
    assert "".join(t for c, t in shown if c is Channel.REASONING) == "x"
    assert "".join(t for c, t in shown if c is Channel.CONTENT) == "y ENQ"
