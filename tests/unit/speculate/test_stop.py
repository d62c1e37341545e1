"""Stop rules: where a block of emitted tokens ends, and why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskside.core import FinishReason, Request, SamplingParams
from deskside.speculate.stop import StopRule

EOS = 9


def rule(**options: object) -> StopRule:
    params = SamplingParams(**options)  # type: ignore[arg-type]
    return StopRule(Request((1,), params), EOS, lambda token: bytes([ord("a") + token]))


def taken(stop: StopRule, block: list[int]) -> tuple[tuple[int, ...], FinishReason | None]:
    """Cut a block twice, which changes nothing, and count what it emits."""
    found = stop.cut(block)
    assert stop.cut(block) == found
    stop.count(found[0])
    return found


@pytest.mark.parametrize("place", range(6))
def test_end_token_at_any_place_of_a_block(place: int) -> None:
    block = [1] * 6
    block[place] = EOS
    assert rule().cut(block) == (tuple(block[: place + 1]), FinishReason.STOP)


def test_end_token_can_be_ignored() -> None:
    assert rule(ignore_eos=True).cut([EOS, 2]) == ((EOS, 2), None)


def test_stop_token() -> None:
    assert rule(stop_token_ids=(4,)).cut([3, 4, 5]) == ((3, 4), FinishReason.STOP)


def test_limit_counts_over_steps() -> None:
    stop = rule(max_tokens=5)
    assert taken(stop, [1, 2, 3]) == ((1, 2, 3), None)
    assert taken(stop, [4, 5, 6]) == ((4, 5), FinishReason.LENGTH)


def test_stop_string_across_steps() -> None:
    stop = rule(stop=("bcd",))
    assert taken(stop, [0, 1]) == ((0, 1), None)
    assert taken(stop, [2, 3, 4]) == ((2, 3), FinishReason.STOP)


@given(
    tokens=st.lists(st.integers(0, 4), max_size=20),
    sizes=st.lists(st.integers(1, 6), max_size=20),
    stops=st.lists(st.text("abcde", min_size=1, max_size=4), max_size=2),
    after=st.sampled_from(["", "a", "cb"]),
    least=st.integers(0, 6),
    limit=st.integers(6, 20),
)
def test_blocks_of_any_size_end_at_the_same_token(
    tokens: list[int], sizes: list[int], stops: list[str], after: str, least: int, limit: int
) -> None:
    """What a step emits never reaches over the token that completes a stop, or over the limit."""

    def emitted(sizes: list[int]) -> tuple[list[int], FinishReason | None]:
        stop = rule(stop=tuple(stops), stop_after=after, min_tokens=least, max_tokens=limit)
        found: list[int] = []
        place = 0
        for size in [*sizes, *[1] * len(tokens)]:
            kept, reason = taken(stop, tokens[place : place + size])
            found += kept
            place += size
            if reason is not None:
                return found, reason
        return found, None

    text = "".join("abcde"[token] for token in tokens)
    ends = []
    if after in text:
        begin = text.index(after) + len(after)
        ends = [n for n in range(begin, len(text) + 1) if text[begin:n].endswith(tuple(stops))]
        ends = [n for n in ends if n > least]
    end = min(ends, default=len(tokens) + 1)
    want = tokens[: min(end, limit)]
    reason = FinishReason.STOP if end <= min(limit, len(tokens)) else None
    reason = reason or (FinishReason.LENGTH if len(tokens) >= limit else None)
    assert emitted(sizes) == emitted([]) == (want, reason)


def test_stop_string_behind_a_text() -> None:
    stop = rule(stop=("bc",), stop_after="de")
    assert taken(stop, [1, 2, 3]) == ((1, 2, 3), None)
    assert taken(stop, [4, 1, 2, 0]) == ((4, 1, 2), FinishReason.STOP)


def test_stop_wins_over_the_limit_at_the_same_token() -> None:
    assert rule(max_tokens=2).cut([1, EOS]) == ((1, EOS), FinishReason.STOP)
