"""A thought that never ends: closed at any place of a block, with what follows a plain prompt's.

The scripted engine puts the end of the budget into every place of a block of accepted proposals;
a small real model says that rows behind forced tokens have the bits of any other rows.
"""

from pathlib import Path

import pytest

from deskside.config.engine import EngineOptions
from deskside.core import SamplingParams, Thought
from deskside.llm import LLM
from tests.equivalence.test_engine import VOCAB, opened
from tests.server.double import CONTROLS, scripted

OPTIONS = EngineOptions(kv_tokens=2048, max_running=4, threads=1)
CLOSE = CONTROLS["</think>"]
WIDTH = 5
SAID = list(range(300, 330))


def params(limit: int, **options: object) -> SamplingParams:
    thought = Thought((CLOSE,), ("</think>",), limit)
    return SamplingParams(
        temperature=0,
        seed=1,
        thought=thought,
        **{"max_tokens": 60, **options},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("limit", range(1, 14))
@pytest.mark.parametrize("wrong", [None, 0, 3, 6])
def test_the_budget_ends_in_any_place_of_a_block(limit: int, wrong: int | None) -> None:
    """The script goes on behind the forced token, so there always is an answer."""
    plain = LLM(scripted(OPTIONS))
    drafting = LLM(scripted(OPTIONS, WIDTH, lambda index: index == wrong))
    for llm in (plain, drafting):
        (found,) = llm.generate([[0, *SAID]], params(limit, logprobs=1))
        # the forced token takes the place of one of the script, which is read by position
        assert list(found.token_ids[: limit + 1]) == [*SAID[:limit], CLOSE]
        assert list(found.token_ids[limit + 1 : -1]) == SAID[limit + 1 :]
        assert len(found.logprobs) == len(found.token_ids)
        assert found.logprobs[limit].logprob == 0.0
        assert found.acceptance.accepted <= len(found.token_ids)
    free = {free_places(llm) for llm in (plain, drafting)}
    assert len(free) == 1


def free_places(llm: LLM) -> tuple[int, int]:
    return llm._runtime.engine.free


@pytest.mark.parametrize("room", [1, 2, 3, 8])
def test_limits_close_to_the_budget(room: int) -> None:
    for width in (0, WIDTH):
        llm = LLM(scripted(OPTIONS, width, lambda index: False))
        (found,) = llm.generate([[0, *SAID]], params(6, max_tokens=6 + room))
        assert len(found.token_ids) == 6 + room
        assert found.finish == "length"
        assert found.token_ids[6] == CLOSE
        assert free_places(llm) == free_places(LLM(scripted(OPTIONS)))


@pytest.mark.parametrize("speculation", ["off", "auto"])
@pytest.mark.parametrize("limit", [3, 8, 20])
def test_what_follows_is_what_follows_the_same_prompt(
    drafting: Path, speculation: str, limit: int
) -> None:
    """Over a page and a window, in exact numerics: generated rows are computed as a prompt's."""
    llm = opened(drafting, speculation=speculation, numerics="exact")
    prompt = [1 + n % (VOCAB - 1) for n in range(121)]
    close, most = llm.tokenizer.encode("Qz"), 40
    assert len(close) > 1
    thought = Thought(close, ("Qz",), limit)
    sampling = SamplingParams(
        temperature=0, seed=1, max_tokens=most, ignore_eos=True, thought=thought
    )
    (found,) = llm.generate([prompt], sampling)
    own = list(found.token_ids[:limit])
    assert found.token_ids[limit : limit + len(close)] == close
    plain = SamplingParams(temperature=0, seed=1, max_tokens=limit, ignore_eos=True)
    (before,) = llm.generate([prompt], plain)
    assert list(before.token_ids) == own
    rest = most - limit - len(close)
    again = SamplingParams(temperature=0, seed=1, max_tokens=rest, ignore_eos=True)
    (after,) = llm.generate([[*prompt, *own, *close]], again)
    assert found.token_ids[limit + len(close) :] == after.token_ids
