"""When a thought is closed for the model: the same for every way in which its tokens come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskside.core import FinishReason, Request, SamplingParams, Thought
from deskside.errors import InputError
from deskside.speculate.stop import StopRule
from deskside.speculate.thought import ThoughtRule

END, EOS = 8, 9
TEXTS = {END: b"</t>", 0: b"</", 1: b"t>", 7: b"[call]"}
ENDS = ("</t>", "[call]")


def bytes_of(token: int) -> bytes:
    return TEXTS.get(token, bytes([ord("a") + token]))


def rule(limit: int | None = None, repeats: int = 0) -> ThoughtRule:
    return ThoughtRule(Thought((END,), ENDS, limit, repeats), bytes_of)


def emitted(thought: ThoughtRule, tokens: list[int], sizes: list[int]) -> list[int]:
    """Emit tokens in blocks; what is forced stands between, and the script goes on behind it."""
    found: list[int] = []
    at = 0
    for size in [*sizes, *[1] * len(tokens)]:
        block = tokens[at : at + size]
        if not block:
            break
        own, forced = thought.cut(block)
        assert thought.cut(block) == (own, forced)
        thought.count((*own, *forced))
        found += [*own, *forced]
        at += len(own)
    return found


@pytest.mark.parametrize("limit", range(1, 8))
@pytest.mark.parametrize("size", range(1, 7))
def test_a_thought_that_never_ends_is_closed_at_its_budget(limit: int, size: int) -> None:
    tokens = [2, 3, 4, 5, 6, 2, 3, 4]
    found = emitted(rule(limit), tokens, [size] * 8)
    assert found == [*tokens[:limit], END, *tokens[limit:]]


@pytest.mark.parametrize("end", [[END], [0, 1], [7]])
@pytest.mark.parametrize("place", range(5))
def test_a_thought_that_ends_in_time_is_left_alone(end: list[int], place: int) -> None:
    tokens = [*[2] * place, *end, *[3] * 9]
    for size in range(1, 7):
        assert emitted(rule(place + len(end)), tokens, [size] * 20) == tokens


def test_a_thought_that_ends_too_late_is_closed() -> None:
    """What would have ended it is text of the answer."""
    for size in range(1, 7):
        assert emitted(rule(2), [2, 2, END, 3], [size] * 4) == [2, 2, END, END, 3]
        assert emitted(rule(3), [2, 2, 0, 1, 3], [size] * 4) == [2, 2, 0, END, 1, 3]


@given(
    tokens=st.lists(st.integers(0, 8), max_size=30),
    sizes=st.lists(st.integers(1, 6), max_size=30),
    limit=st.none() | st.integers(1, 20),
    repeats=st.sampled_from([0, 2, 40]),
)
def test_blocks_do_not_matter(
    tokens: list[int], sizes: list[int], limit: int | None, repeats: int
) -> None:
    alone = emitted(rule(limit, repeats), tokens, [])
    assert emitted(rule(limit, repeats), tokens, sizes) == alone
    if limit is not None:
        thought = alone[: next((n for n, t in enumerate(alone) if t in (END, 7)), len(alone))]
        assert len(thought) <= limit


@pytest.mark.parametrize("piece", [[2], [2, 3], [2, 3, 4, 5, 6], list(range(2, 7)) * 12 + [2]])
def test_a_thought_that_repeats_is_closed(piece: list[int]) -> None:
    start = [6, 5, 4]
    tokens = [*start, *piece * 40]
    found = emitted(rule(repeats=4), tokens, [5] * 2000)
    own = found.index(END) - len(start)
    assert own >= 32
    assert own >= min(4 * len(piece), 4 * 5)  # a long piece has shorter ones within
    assert own <= max(32, 4 * len(piece)) + 1
    assert emitted(rule(repeats=0), tokens, [5] * 2000) == tokens


def test_a_few_repetitions_are_style() -> None:
    tokens = [*[2] * 31, 3, *[4, 5] * 15, 6]
    assert emitted(rule(repeats=4), tokens, []) == tokens


def test_the_stop_rules_come_before_what_is_forced() -> None:
    def stops(**options: object) -> StopRule:
        thought = Thought((END,), ENDS, 3)
        params = SamplingParams(thought=thought, **options)  # type: ignore[arg-type]
        return StopRule(Request((1,), params), EOS, bytes_of)

    for stop, want in (
        (stops(max_tokens=3), ((2, 3, 4), FinishReason.LENGTH)),
        (stops(max_tokens=4), ((2, 3, 4, END), FinishReason.LENGTH)),
        (stops(max_tokens=5), ((2, 3, 4, END), None)),
        (stops(stop_token_ids=(3,)), ((2, 3), FinishReason.STOP)),
    ):
        own, forced = stop.close([2, 3, 4, 5])
        assert (own, forced) == ((2, 3, 4), (END,))
        assert stop.cut((*own, *forced)) == want
    without = StopRule(Request((1,), SamplingParams()), EOS, None)
    assert without.close([2, 3]) == ((2, 3), ())


def test_refusals() -> None:
    with pytest.raises(InputError, match="thinking_budget must be at least 1, got 0"):
        Thought((END,), ENDS, 0)
    for repeats in (-1, 1, 1001):
        with pytest.raises(InputError, match="repetition_guard must be 0"):
            Thought((END,), ENDS, None, repeats)
