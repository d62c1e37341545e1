"""Stop strings against a slow statement of the same rule."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskside.errors import InputError
from deskside.text.stops import StopScanner, TextStream

STOPS = st.lists(st.text("abé🙂", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(
    st.one_of(
        st.text("abé🙂", max_size=4).map(str.encode), st.sampled_from([b"\xc3", b"\xa9", b"\xf0"])
    ),
    max_size=12,
)


AFTER = st.sampled_from(["", "a", "ba", "éa", "🙂"])


LEAST = st.integers(0, 4)


def first_match(
    pieces: list[bytes], stops: list[str], after: str, least: int
) -> tuple[int, int] | None:
    """Return (start, end) of the match that ends first, the longest of those."""
    data = b"".join(pieces)
    early = len(b"".join(pieces[:least]))
    if after.encode() not in data:
        return None
    begin = data.index(after.encode()) + len(after.encode())
    found = [
        (end, end - len(stop.encode()))
        for stop in stops
        for end in range(begin, len(data) + 1)
        if end > early and data[begin:end].endswith(stop.encode())
    ]
    if not found:
        return None
    end, start = min(found)
    return start, end


@given(pieces=PIECES, stops=STOPS, after=AFTER, least=LEAST)
def test_stream_shows_what_precedes_the_first_match(
    pieces: list[bytes], stops: list[str], after: str, least: int
) -> None:
    data = b"".join(pieces)
    match = first_match(pieces, stops, after, least)
    want = (data if match is None else data[: match[0]]).decode("utf-8", errors="replace")
    stream = TextStream(pieces.__getitem__, stops, after, least)
    shown = ""
    for place in range(len(pieces)):
        shown += stream.feed([place])
        assert want.startswith(shown)
    shown += stream.finish()
    assert shown == want
    assert stream.stopped == (match is not None)
    assert stream.finish() == ""


@given(pieces=PIECES, stops=STOPS)
def test_one_feed_equals_many(pieces: list[bytes], stops: list[str]) -> None:
    one, many = TextStream(pieces.__getitem__, stops), TextStream(pieces.__getitem__, stops)
    whole = one.feed(range(len(pieces)))
    assert whole == "".join(many.feed([place]) for place in range(len(pieces)))


@given(pieces=PIECES, stops=STOPS, after=AFTER, least=LEAST)
def test_scanner_names_the_token_that_completes_the_stop(
    pieces: list[bytes], stops: list[str], after: str, least: int
) -> None:
    match = first_match(pieces, stops, after, least)
    scanner = StopScanner(pieces.__getitem__, stops, after, least)
    seen = 0
    for place, piece in enumerate(pieces):
        seen += len(piece)
        stopped = scanner.feed(place)
        assert stopped == (match is not None and seen >= match[1])
        if stopped:
            break


@given(pieces=PIECES, stops=STOPS, after=AFTER, least=LEAST)
def test_tokens_trimmed_by_the_engine_give_the_clients_text(
    pieces: list[bytes], stops: list[str], after: str, least: int
) -> None:
    scanner = StopScanner(pieces.__getitem__, stops, after, least)
    emitted = []
    for place in range(len(pieces)):
        emitted.append(place)
        if scanner.feed(place):
            break
    trimmed = TextStream(pieces.__getitem__, stops, after, least)
    free = TextStream(pieces.__getitem__, stops, after, least)
    text = trimmed.feed(emitted) + trimmed.finish()
    assert text == free.feed(range(len(pieces))) + free.finish()


def test_stops_count_behind_the_end_of_reasoning_alone() -> None:
    """A stop string inside a thought would end the request with no answer at all."""
    pieces = [b"a=1 ", b"</thi", b"nk>=", b"b=2"]
    stream = TextStream(pieces.__getitem__, ["="], "</think>")
    assert [stream.feed([n]) for n in range(3)] == ["a=1 ", "</thi", "nk>"]
    assert stream.stopped
    assert TextStream(pieces.__getitem__, ["="]).feed(range(4)) == "a"
    stream = TextStream(pieces.__getitem__, [">b", "k>="], "</think>")
    assert stream.feed(range(4)) == "a=1 </think>=b=2"  # none reaches over the border
    assert not stream.stopped


def test_a_near_miss_is_held_then_shown_whole() -> None:
    stream = TextStream([b"x END", b"O", b"F"].__getitem__, ["ENDING"])
    assert stream.feed([0]) == "x "
    assert stream.feed([1]) == "ENDO"
    assert stream.feed([2]) == "F"
    assert stream.finish() == ""


def test_what_is_held_at_the_end_is_shown() -> None:
    stream = TextStream([b"a EN"].__getitem__, ["END"])
    assert stream.feed([0]) == "a "
    assert stream.finish() == "EN"
    assert not stream.stopped


def test_nothing_shows_after_the_stop() -> None:
    stream = TextStream([b"one\n\ntwo", b"three"].__getitem__, ["\n\n"])
    assert stream.feed([0, 1]) == "one"
    assert stream.stopped
    assert stream.feed([1]) == ""
    assert stream.finish() == ""


def test_no_stops_hold_nothing() -> None:
    stream = TextStream([b"abc"].__getitem__)
    assert stream.feed([0]) == "abc"


def test_scanner_takes_no_token_after_the_stop() -> None:
    scanner = StopScanner([b"a"].__getitem__, ["a"])
    assert scanner.feed(0)
    with pytest.raises(AssertionError):
        scanner.feed(0)


def test_stop_strings_must_be_utf8() -> None:
    with pytest.raises(InputError, match="stop string 2 is not valid UTF-8"):
        TextStream([].__getitem__, ["ok", "\udcff"])


def test_long_stops_take_linear_time() -> None:
    stop = "a" * 100_000 + "b"
    stream = TextStream(lambda _: b"a" * 100 + b"c", [stop, "a" * 50_000 + "d"])
    begin = time.process_time()
    shown = "".join(stream.feed([0]) for _ in range(2_000)) + stream.finish()
    assert len(shown) == 202_000
    near = TextStream(lambda _: b"a" * 100, [stop])
    assert "".join(near.feed([0]) for _ in range(2_000)) == "a" * 100_000
    assert time.process_time() - begin < 5.0  # a quadratic rule would take minutes
