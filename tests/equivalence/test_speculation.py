"""Speculation changes speed and nothing else: greedy text byte for byte, state to the last page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deskside.core import FinishReason, SamplingParams
from deskside.errors import InputError
from deskside.layout.folder import BUILTIN
from deskside.llm import LLM, Result
from deskside.model.draft_inputs import Anchor
from deskside.model.drafter import Drafter, Drafts
from deskside.runtime.speculate import STORED_COSTS
from deskside.speculate.costs import MEASURED_ROWS
from tests.equivalence.test_engine import VOCAB, alone, opened, params, same, write_tokenizer
from tests.miniature import write_miniature
from tests.scripted import Scripted, scripted, speculator

PROMPT = "x" * 121
OUTPUT = 150


@pytest.fixture(scope="module")
def greedy(plain: LLM) -> Result:
    return alone(plain, PROMPT, params(temperature=0, max_tokens=OUTPUT))


def run(llm: LLM, script: Scripted, sampling: SamplingParams) -> Result:
    with scripted(llm, script):
        return alone(llm, PROMPT, sampling)


def right(truth: Sequence[int]) -> Scripted:
    """Propose five tokens at a time, all of them right."""
    return Scripted(truth, VOCAB, lambda _seed, _place: 5, lambda _seed, _place, _k: False)


@pytest.mark.parametrize("speculation", [0, 1, 2, 3, 4, 5, "auto"])
def test_greedy_text_is_the_same_at_every_width(
    drafting: Path, greedy: Result, speculation: object
) -> None:
    llm = opened(drafting, speculation=speculation, fallback=False)
    assert same(alone(llm, PROMPT, params(temperature=0, max_tokens=OUTPUT)), greedy)


@pytest.mark.parametrize("rule", ["stop", "expect", "argmax"])
def test_greedy_text_is_the_same_under_every_rule_and_the_controller(
    drafting: Path, greedy: Result, rule: str
) -> None:
    llm = opened(
        drafting,
        width_rule=rule,
        fallback_rule="fixed",
        fallback_min_drafted=3,
        fallback_steps=2,
        fallback_threshold=1.0,
    )
    assert same(alone(llm, PROMPT, params(temperature=0, max_tokens=OUTPUT)), greedy)


@pytest.mark.parametrize("width", [1, 3, 5, 8])
def test_changing_masks(plain: LLM, greedy: Result, width: int) -> None:
    script = Scripted(
        greedy.token_ids,
        VOCAB,
        lambda _seed, _place: width,
        lambda _seed, place, _k: place % 7 == 3,
    )
    result = run(plain, script, params(temperature=0, max_tokens=OUTPUT))
    assert same(result, greedy)
    assert script.accepted == result.acceptance.accepted > OUTPUT // 3
    assert result.acceptance.steps + result.acceptance.accepted == OUTPUT - 1


@pytest.mark.parametrize("offset", range(6))
def test_a_stop_token_inside_a_block(plain: LLM, greedy: Result, offset: int) -> None:
    truth = greedy.token_ids
    place = next(i for i in range(7 + offset, 150, 6) if truth[i] not in truth[:i])
    stop = params(temperature=0, max_tokens=OUTPUT, stop_token_ids=(truth[place],))
    script = right(truth)
    result = run(plain, script, stop)
    assert (result.token_ids, result.finish) == (truth[: place + 1], FinishReason.STOP)
    assert script.accepted <= place


@pytest.mark.parametrize("offset", range(6))
def test_the_end_token_inside_a_block(plain: LLM, offset: int) -> None:
    """Nothing is likelier than the end, as soon as it may come."""
    end, least = plain.tokenizer.eos, 7 + offset
    sampling = params(
        temperature=0,
        max_tokens=OUTPUT,
        ignore_eos=False,
        min_tokens=least,
        logit_bias=((end, 100.0),),
    )
    expected = alone(plain, PROMPT, sampling)
    assert (len(expected.token_ids), expected.token_ids[-1]) == (least + 1, end)
    script = right((*expected.token_ids, 7, 7, 7, 7, 7, 7))
    owners = plain._runtime.engine._owners
    before = owners.pages.free, owners.rings.free
    result = run(plain, script, sampling)
    assert same(result, expected)
    assert result.finish is FinishReason.STOP
    assert script.accepted >= least - 2
    assert (owners.pages.free, owners.rings.free) == before


@pytest.mark.parametrize("limit", range(1, 9))
def test_a_limit_inside_a_block(plain: LLM, greedy: Result, limit: int) -> None:
    script = right(greedy.token_ids)
    result = run(plain, script, params(temperature=0, max_tokens=limit))
    assert (result.token_ids, result.finish) == (greedy.token_ids[:limit], FinishReason.LENGTH)


def test_nothing_leaks(drafting: Path) -> None:
    llm = opened(drafting, speculation=5)
    owners = llm._runtime.engine._owners
    before = owners.pages.free, owners.rings.free
    for prompt in ("a", "b" * 200):
        alone(llm, prompt, params(max_tokens=30))
        stream = llm.stream(prompt, params(max_tokens=30))
        next(stream)
        stream.close()
    assert (owners.pages.free, owners.rings.free) == before


def test_the_plan_counts_the_drafter(drafting: Path) -> None:
    for speculation in ("auto", "off"):
        llm = opened(drafting, speculation=speculation)
        assert llm.plan.capacity.nbytes == llm.state_bytes


def test_a_width_that_cannot_be_is_refused(drafting: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at most 5"):
        opened(drafting, speculation=6)
    write_miniature(tmp_path, vocab=VOCAB)
    write_tokenizer(tmp_path)
    with pytest.raises(InputError, match="no drafter"):
        opened(tmp_path, speculation=1)


def test_the_model_that_ships_drafts_well() -> None:
    """With a damaged drafter, or one that is fed wrongly, almost nothing would be accepted."""
    prompt = "def binary_search(items, target):\n    low, high = 0, len(items) - 1"
    greedy = SamplingParams(temperature=0, max_tokens=96, ignore_eos=True)
    results = [
        alone(opened(BUILTIN / "deskside-mini", speculation=width, fallback=False), prompt, greedy)
        for width in ("off", 5)
    ]
    assert same(*results)
    acceptance = results[1].acceptance
    assert acceptance.steps + acceptance.accepted == 95
    assert acceptance.accepted > 2 * acceptance.steps


@pytest.fixture
def _no_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("_no_profile")
def test_costs_are_measured_without_a_trace(
    drafting: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="deskside.speculation"):
        llm = opened(drafting)
    assert "measured costs: draft " in caplog.text
    assert "forward by rows in ms: 1: " in caplog.text
    owners = llm._runtime.engine._owners
    assert (owners.pages.free, owners.rings.free) == (4096 // 128, 4)
    assert speculator(llm).costs == speculator(llm).stored != STORED_COSTS
    assert speculator(llm).costs.rows == MEASURED_ROWS
    assert not speculator(llm)._records


@pytest.mark.usefixtures("_no_profile")
def test_costs_are_kept_for_later_starts(drafting: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = speculator(opened(drafting)).costs
    with caplog.at_level("INFO", logger="deskside.speculation"):
        second = speculator(opened(drafting))
    assert (second.costs, second.stored) == (first, first)
    assert f"costs of an earlier start: {first.curve()}" in caplog.text
    again = speculator(opened(drafting, measure_costs=True))
    assert again.stored == again.costs != first
    assert speculator(opened(drafting)).costs == again.costs
    assert speculator(opened(drafting, kv_format="float32")).costs != again.costs


def test_where_costs_cannot_be_kept_a_seed_has_built_in_ones(
    drafting: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = speculator(opened(drafting))
    assert found.stored == STORED_COSTS != found.costs
    assert "requests with a seed count with built-in costs" in caplog.text


def test_requests_without_a_seed_share_a_budget(drafting: Path, greedy: Result) -> None:
    llm = opened(drafting, speculation="auto", fallback=False)
    free = params(temperature=0, max_tokens=OUTPUT, seed=None)
    assert all(result.token_ids == greedy.token_ids for result in llm.generate([PROMPT] * 3, free))


def test_a_pause_leaves_the_drafters_context_current(
    drafting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft after target-only steps is the draft of an engine that drafts in every step."""
    own = Drafter.draft
    drafts: dict[int, list[object]] = {}

    def recorded(drafter: Drafter, anchors: Sequence[Anchor], *rest: Any) -> Drafts:
        found = own(drafter, anchors, *rest)
        (anchor,) = anchors
        drafts.setdefault(anchor.position, []).append(found.read())
        return found

    monkeypatch.setattr(Drafter, "draft", recorded)
    sampling = params(temperature=0, max_tokens=OUTPUT)
    alone(opened(drafting, speculation=0, fallback=False), PROMPT, sampling)
    every = {position: found for position, (found,) in drafts.items()}
    drafts.clear()
    pauses = {
        "fallback_rule": "fixed",
        "fallback_threshold": 1.0,
        "fallback_min_drafted": 5,
        "fallback_steps": 4,
    }
    result = alone(opened(drafting, speculation=3, **pauses), PROMPT, sampling)
    assert result.acceptance.probes > 5
    assert len(every) == OUTPUT - 2
    assert OUTPUT // 10 < len(drafts) < OUTPUT // 2
    for position, (found,) in drafts.items():
        assert found == every[position]


def test_the_controller_trips_and_probes(drafting: Path, caplog: pytest.LogCaptureFixture) -> None:
    llm = opened(
        drafting, speculation=4, fallback_rule="fixed", fallback_min_drafted=8, fallback_steps=5
    )
    with caplog.at_level("INFO", logger="deskside.speculation"):
        result = alone(llm, PROMPT, params(temperature=0, max_tokens=60))
    assert "accepted 0.0% of 8 proposals; target-only for 5 steps" in caplog.text
    assert "probing speculation after 5 target-only steps" in caplog.text
    assert 0 < result.acceptance.verified < 4 * result.acceptance.steps
