"""Stop rules: where a block of emitted tokens ends, and why."""

import pytest

from deskside.core import FinishReason, Request, SamplingParams
from deskside.speculate.stop import StopRule

EOS = 9


def rule(**options: object) -> StopRule:
    params = SamplingParams(**options)  # type: ignore[arg-type]
    return StopRule(Request((1,), params), EOS, lambda token: bytes([ord("a") + token]))


@pytest.mark.parametrize("place", range(6))
def test_end_token_at_any_place_of_a_block(place: int) -> None:
    block = [1] * 6
    block[place] = EOS
    assert rule().take(block) == (tuple(block[: place + 1]), FinishReason.STOP)


def test_end_token_can_be_ignored() -> None:
    assert rule(ignore_eos=True).take([EOS, 2]) == ((EOS, 2), None)


def test_stop_token() -> None:
    assert rule(stop_token_ids=(4,)).take([3, 4, 5]) == ((3, 4), FinishReason.STOP)


def test_limit_counts_over_steps() -> None:
    stop = rule(max_tokens=5)
    assert stop.take([1, 2, 3]) == ((1, 2, 3), None)
    assert stop.take([4, 5, 6]) == ((4, 5), FinishReason.LENGTH)


def test_stop_string_across_steps() -> None:
    stop = rule(stop=("bcd",))
    assert stop.take([0, 1]) == ((0, 1), None)
    assert stop.take([2, 3, 4]) == ((2, 3), FinishReason.STOP)


def test_stop_string_behind_a_text() -> None:
    stop = rule(stop=("bc",), stop_after="de")
    assert stop.take([1, 2, 3]) == ((1, 2, 3), None)
    assert stop.take([4, 1, 2, 0]) == ((4, 1, 2), FinishReason.STOP)


def test_stop_wins_over_the_limit_at_the_same_token() -> None:
    assert rule(max_tokens=2).take([1, EOS]) == ((1, EOS), FinishReason.STOP)
