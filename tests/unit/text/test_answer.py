"""The rules of a stream, for what one choice of a chat shows: any cut, any stop, any start.

Tokens here are arbitrary cuts of UTF-8, down to single bytes, so that characters, stop strings and
the marker are split over tokens at every place.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deskside.text.answer import AnswerStream
from deskside.text.reasoning import Channel
from deskside.text.stops import StopScanner
from deskside.text.tools import ToolCall

MARKER = "</think>"
CHARACTERS = [
    "e\u0301",
    "한국",
    "👨\u200d👩\u200d👧",
    "🙂",
    "你好",
    "ß",
    "a",
    " ",
    "\n",
    "<",
    MARKER,
    "END",
    "E",
]
TEXTS = st.lists(st.sampled_from(CHARACTERS), max_size=14).map("".join)
STOPS = st.lists(st.sampled_from(["END", "👩", "k>", "<", "\n\n", "한국한", " "]), max_size=2)
CUTS = st.lists(st.integers(1, 6), max_size=80)


def tokens_of(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut bytes into tokens of the given sizes, single bytes behind the last size."""
    tokens, start = [], 0
    for size in [*sizes, *[1] * len(data)]:
        if start == len(data):
            break
        tokens.append(data[start : start + size])
        start += size
    return tokens


def emitted(tokens: list[bytes], start: Channel, stops: list[str]) -> int:
    """Return how many tokens the engine emits: up to the one that completes a stop."""
    scanner = StopScanner(tokens.__getitem__, stops, start.stop_after)
    for place in range(len(tokens)):
        if scanner.feed(place):
            return place + 1
    return len(tokens)


def whole(text: str, start: Channel, stops: list[str]) -> dict[Channel, str]:
    """State the rules slowly: split at the marker, then cut the content before a stop."""
    reasoning, marker, content = text.partition(MARKER)
    if start is Channel.CONTENT:
        reasoning, marker, content = "", MARKER, text
    ends = [
        (end, end - len(stop))
        for stop in stops
        for end in range(len(content) + 1)
        if content[:end].endswith(stop)
    ]
    if marker and ends:
        content = content[: min(ends)[1]]
    return {Channel.REASONING: reasoning, Channel.CONTENT: content}


def shown(
    tokens: list[bytes], groups: list[int], start: Channel, stops: list[str]
) -> dict[Channel, str]:
    """Feed tokens in groups, as blocks of speculation do, and hold every piece to the rules."""
    stream = AnswerStream(tokens.__getitem__, start, stops)
    count, place = emitted(tokens, start, stops), 0
    found = {Channel.REASONING: "", Channel.CONTENT: ""}
    pieces = []
    for size in [*groups, *[1] * count]:
        pieces += stream.feed(range(place, min(place + size, count)))
        place = min(place + size, count)
    pieces += stream.finish()
    assert stream.finish() == []
    for channel, piece in pieces:
        assert piece
        assert channel is Channel.CONTENT or not found[Channel.CONTENT]
        found[channel] += piece
    assert 0 <= stream.reasoning_tokens <= count
    return found


@given(text=TEXTS, stops=STOPS, sizes=CUTS, groups=CUTS, start=st.sampled_from(Channel))
@example(text=f"a{MARKER}EEND", stops=["END"], sizes=[], groups=[], start=Channel.REASONING)
@example(
    text="👨\u200d👩\u200d👧 x", stops=["👩"], sizes=[2, 3, 1], groups=[], start=Channel.CONTENT
)
def test_any_way_of_coming_gives_the_same_text(
    text: str, stops: list[str], sizes: list[int], groups: list[int], start: Channel
) -> None:
    tokens = tokens_of(text.encode(), sizes)
    want = whole(text, start, stops)
    assert shown(tokens, groups, start, stops) == want
    assert shown(tokens, [len(tokens)], start, stops) == want


@given(text=TEXTS, sizes=CUTS, limit=st.integers(0, 30), start=st.sampled_from(Channel))
def test_a_limit_in_the_middle_of_a_character(
    text: str, sizes: list[int], limit: int, start: Channel
) -> None:
    """Only where the limit cuts a character does U+FFFD show: once, at the very end."""
    tokens = tokens_of(text.encode(), sizes)[:limit]
    data = b"".join(tokens)
    got = shown(tokens, [], start, [])
    rest = "".join(got.values())
    kept = data.decode("utf-8", errors="ignore")
    want = whole(kept, start, [])
    broken = kept.encode() != data
    assert rest == want[Channel.REASONING] + want[Channel.CONTENT] + "\ufffd" * broken


@pytest.mark.parametrize("character", ["한", "🙂", "e\u0301", "👨\u200d👩\u200d👧", "ß"])
def test_a_character_that_is_not_whole_waits(character: str) -> None:
    """Also when a token that begins with a space follows a part of it: that is then broken text."""
    data = character.encode()
    for cut in range(1, len(data)):
        tokens = [data[:cut], data[cut:], b" x"]
        stream = AnswerStream(tokens.__getitem__, Channel.CONTENT)
        first = "".join(piece for _, piece in stream.feed([0]))
        assert "\ufffd" not in first
        assert character.startswith(first)
        assert first + "".join(piece for _, piece in stream.feed([1, 2])) == f"{character} x"
    lost = AnswerStream([data[:1], b" x"].__getitem__, Channel.CONTENT)
    pieces = lost.feed([0]) + lost.feed([1]) + lost.finish()
    text = "".join(piece for _, piece in pieces)
    assert text == (data[:1] + b" x").decode("utf-8", errors="replace")


def test_stops_wait_for_the_least_number_of_tokens() -> None:
    tokens = [b"a", b".", b"b.", b"c", b"."]
    stream = AnswerStream(tokens.__getitem__, Channel.CONTENT, ["."], 3)
    pieces = stream.feed(range(5)) + stream.finish()
    assert "".join(piece for _, piece in pieces) == "a.b.c"


def test_a_thought_that_ends_counts_its_end() -> None:
    tokens = [b"so", b"</", b"think>", b"yes", b"."]
    stream = AnswerStream(tokens.__getitem__, Channel.REASONING, ["."])
    assert stream.feed([0, 1]) == [(Channel.REASONING, "so")]
    assert stream.feed([2, 3]) == [(Channel.CONTENT, "yes")]
    assert stream.feed([4]) == stream.finish() == []
    assert stream.reasoning_tokens == 3


def test_a_thought_that_never_ends() -> None:
    """Nothing is content, no stop counts, and every token was reasoning."""
    tokens = [b"so. ", b"</thi"]
    stream = AnswerStream(tokens.__getitem__, Channel.REASONING, ["."])
    assert stream.feed([0, 1]) == [(Channel.REASONING, "so. ")]
    assert stream.finish() == [(Channel.REASONING, "</thi")]
    assert stream.reasoning_tokens == 2


D = "｜DSML｜"
CALL = f'<{D}tool_calls>\n<{D}invoke name="f">\n\n</{D}invoke>\n</{D}tool_calls>'
LATER = CALL.replace('"f"', '"g"')
TALKS = {
    f"r{MARKER}a\n\n{CALL}": ("r", "a", ["f"]),
    f"r\n\n{CALL}": ("r", "", ["f"]),
    f"r</thi{CALL}a{MARKER}": ("r</thi", f"a{MARKER}", ["f"]),
    f"r<{D}tool_calls>{MARKER}a": (f"r<{D}tool_calls>", "a", []),
    f"{MARKER}{CALL}\n\n{LATER}": ("", "", ["f", "g"]),
    f"r{MARKER}a{CALL[:-30]}": ("r", f"a{CALL[:-30]}", []),
}


@pytest.mark.parametrize("text", TALKS)
def test_calls_end_a_thought_wherever_the_text_is_cut(text: str) -> None:
    thought, content, names = TALKS[text]
    data = text.encode()
    for cut in range(len(data)):
        tokens = [piece for piece in (data[:cut], data[cut:]) if piece]
        stream = AnswerStream(tokens.__getitem__, Channel.REASONING, tools=True)
        parts = [part for place in range(len(tokens)) for part in stream.feed([place])]
        parts += stream.finish()
        said = {Channel.REASONING: "", Channel.CONTENT: ""}
        for part in parts:
            if not isinstance(part, ToolCall):
                said[part[0]] += part[1]
        assert said == {Channel.REASONING: thought, Channel.CONTENT: content}
        assert [part.name for part in parts if isinstance(part, ToolCall)] == names


def test_one_call_alone_where_no_more_are_wanted() -> None:
    tokens = [f"{MARKER}{CALL}".encode(), LATER.encode(), b"a"]
    stream = AnswerStream(tokens.__getitem__, Channel.REASONING, tools=True, parallel=False)
    parts = stream.feed([0, 1, 2]) + stream.finish()
    assert parts == [ToolCall("f", "{}"), (Channel.CONTENT, "a")]


def test_without_tools_a_block_is_text() -> None:
    stream = AnswerStream([CALL.encode()].__getitem__, Channel.CONTENT)
    assert stream.feed([0]) + stream.finish() == [(Channel.CONTENT, CALL)]


def test_a_call_ends_the_count_of_reasoning() -> None:
    tokens = [b"r", b"\n\n", *(bytes([byte]) for byte in CALL.encode())]
    stream = AnswerStream(tokens.__getitem__, Channel.REASONING, tools=True)
    stream.feed(range(len(tokens)))
    assert stream.reasoning_tokens == 2 + len(f"<{D}tool_calls>".encode())


def test_the_stop_that_was_found_is_known() -> None:
    tokens = [b"aE", b"ND", b"b"]
    stream = AnswerStream(tokens.__getitem__, Channel.CONTENT, ["x", "END"])
    assert stream.stop is None
    assert stream.feed([0, 1]) == [(Channel.CONTENT, "a")]
    assert stream.stop == "END"
