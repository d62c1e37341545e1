"""Several ranks as one engine: the same text, one that decides, and faults that part them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deskside.checkpoint.index import Checkpoint
from deskside.config.engine import EngineOptions
from deskside.core import Constraint, FinishReason, SamplingParams, StepOutput, StepPlan
from deskside.engine.engine import Engine
from deskside.engine.follower import Follower
from deskside.engine.verify import judge
from deskside.errors import LostRankError, NanLogitsError, RankDisagreementError
from deskside.layout.folder import resolve
from deskside.llm import LLM, Result
from deskside.speculate.proposal import Proposer
from deskside.text.grammar import regex_grammar
from tests.distributed.led import Ranks, led
from tests.distributed.threads import ThreadGroup
from tests.equivalence.test_engine import VOCAB, write_tokenizer
from tests.miniature import write_miniature

PROMPTS = ["def f(x):", "import os\n" * 30, "x"]
SHAPE = {"heads": 4, "o_groups": 4, "o_lora": 128, "intermediate": 512, "vocab": VOCAB}
CASES: dict[str, dict[str, object]] = {
    "target": {"speculation": "off"},
    "verify": {
        "speculation": 3,
        "fallback_rule": "fixed",
        "fallback_min_drafted": 9,
        "fallback_steps": 2,
    },
    "slots": {"speculation": "off", "backend": "fetch", "expert_slots": 16},
    "chunks": {"speculation": 2, "prefill_chunk": 50, "step_tokens": 20, "max_running": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    write_miniature(folder, seed=4, drafter=True, **SHAPE)
    write_tokenizer(folder)
    return folder


def options(ranks: int, **case: object) -> EngineOptions:
    common = {"kv_tokens": 4096, "threads": 1, "max_running": 4, "numerics": "exact"}
    return EngineOptions(**{**common, **case}, tp=ranks)  # type: ignore[arg-type]


def texts(llm: LLM) -> list[tuple[int, ...]]:
    """Return greedy, drawn and penalised continuations, together and one after the other."""
    found: list[Result] = []
    for heat, penalty in ((0.0, 0.0), (0.9, 0.0), (1.4, 0.3)):
        sampling = SamplingParams(
            temperature=heat, seed=3, max_tokens=12, ignore_eos=True, frequency_penalty=penalty
        )
        found += llm.generate(PROMPTS, sampling)
    assert {result.finish for result in found} == {FinishReason.LENGTH}
    return [result.token_ids for result in found]


def under_a_grammar(llm: LLM) -> list[tuple[int, ...]]:
    """Return texts of one form, greedy and drawn, together."""
    held = Constraint(regex_grammar("[a-f]{4}(-[0-9]{2}){3}"))
    found = []
    for heat in (0.0, 1.2):
        sampling = SamplingParams(temperature=heat, seed=3, max_tokens=30, constraint=held)
        found += llm.generate(PROMPTS, sampling)
    assert all(re.fullmatch("[a-f]{4}(-[0-9]{2}){3}", result.text) for result in found)
    return [result.token_ids for result in found]


@pytest.mark.parametrize("case", ["target", "verify"])
def test_only_the_leader_knows_of_a_grammar(folder: Path, case: str) -> None:
    with LLM.open(str(folder), options(1, **CASES[case])) as alone:
        expected = under_a_grammar(alone)
    assert led(folder, options(2, **CASES[case]), under_a_grammar) == expected


@pytest.mark.parametrize("case", CASES)
def test_the_text_of_several_ranks(folder: Path, case: str) -> None:
    with LLM.open(str(folder), options(1, **CASES[case])) as alone:
        expected = texts(alone)
    for ranks in (2, 4):
        assert led(folder, options(ranks, **CASES[case]), texts) == expected


def with_numbers(llm: LLM) -> list[object]:
    """Return continuations, greedy and drawn, with the log probabilities of each place's best."""
    found: list[object] = []
    for heat in (0.0, 0.9):
        sampling = SamplingParams(
            temperature=heat, seed=7, max_tokens=24, ignore_eos=True, logprobs=5
        )
        results = llm.generate(["def fibonacci(n):", "import os\n"], sampling)
        found += [(result.token_ids, result.logprobs) for result in results]
    return found


@pytest.mark.parametrize("speculation", ["off", 3])
def test_the_built_in_model_of_several_ranks(speculation: object) -> None:
    case: dict[str, object] = {"speculation": speculation, "fallback": False}
    folder = resolve("deskside-mini")
    with LLM.open(str(folder), options(1, **case)) as alone:
        expected = with_numbers(alone)
    for ranks in (2, 4):
        assert led(folder, options(ranks, **case), with_numbers) == expected


def test_the_built_in_model_of_several_processes() -> None:
    """The same over the memory that processes share."""
    case: dict[str, object] = {"speculation": 3, "fallback": False}
    with LLM.open("deskside-mini", options(1, **case)) as alone:
        expected = with_numbers(alone)
    with LLM.open("deskside-mini", options(2, **case)) as several:
        assert with_numbers(several) == expected


@pytest.mark.parametrize("drafted", [False, True])
def test_what_a_token_costs_in_exchanges(folder: Path, drafted: bool) -> None:
    """Two a layer, the embedding, the logits, work and word; a draft adds its own and a choice.

    The token of a draft's last place is told with the choice.
    """
    case = options(2, speculation=1 if drafted else "off", fallback=False)
    spec = Checkpoint.open(folder).spec
    assert spec.drafter is not None
    stages, places = spec.drafter.stages, spec.drafter.block
    each = 2 * len(spec.ratios) + 2 + 2
    each += drafted * (1 + 2 * stages + 3 * places - 1 + 1)

    def counted(llm: LLM) -> list[int]:
        group, engine, found = llm._runtime.ensemble.group, llm._runtime.engine, []
        step = engine.step

        def one(plan: StepPlan) -> StepOutput:
            before = group.traffic.calls
            output = step(plan)
            found.append(group.traffic.calls - before)
            return output

        engine.step = one  # type: ignore[method-assign]
        llm.generate(["abc"], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
        return found

    prompt, *steps, _last = led(folder, case, counted)
    assert set(steps) == {each}
    assert prompt == 2 * len(spec.ratios) + 2 + 2


def test_a_stream_that_is_left_and_one_that_ends_give_everything_back(folder: Path) -> None:
    def left(llm: LLM) -> tuple[int, ...]:
        sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        free = llm._runtime.engine.free
        stream = llm.stream("abc", sampling)
        next(stream)
        stream.close()
        (whole,) = llm.generate(["abc"], sampling)
        assert llm._runtime.engine.free == free
        return whole.token_ids

    with LLM.open(str(folder), options(1)) as alone:
        assert led(folder, options(2), left) == left(alone)


def test_a_fault_of_one_request_costs_that_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault while others wait for the word rolls every rank back; each span is tried alone."""

    def judged(logits: Tensor, questions: list[object]) -> object:
        if any(len(q.known) > 300 for q in questions):  # type: ignore[attr-defined]
            raise NanLogitsError("the test's own")
        return judge(logits, questions)  # type: ignore[arg-type]

    monkeypatch.setattr("deskside.engine.engine.judge", judged)

    def some(llm: LLM) -> list[tuple[int, ...]]:
        sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        results = llm.generate(["ab", "x" * 310, "cd"], sampling)
        assert [r.finish for r in results] == [
            FinishReason.LENGTH,
            FinishReason.ERROR,
            FinishReason.LENGTH,
        ]
        return [r.token_ids for r in results]

    with LLM.open(str(folder), options(1)) as alone:
        expected = some(alone)
    assert led(folder, options(2), some) == expected


def test_log_probabilities_of_prompt_and_output(folder: Path) -> None:
    """The leader alone has logits: those of prompt rows too."""

    def scored(llm: LLM) -> list[object]:
        sampling = SamplingParams(
            temperature=0, max_tokens=5, ignore_eos=True, logprobs=3, prompt_logprobs=True
        )
        results = llm.generate(PROMPTS, sampling)
        return [(r.token_ids, r.logprobs, r.prompt_logprobs) for r in results]

    case: dict[str, object] = {"speculation": 2, "prefill_chunk": 50}
    with LLM.open(str(folder), options(1, **case)) as alone:
        expected = scored(alone)
    assert led(folder, options(2, **case), scored) == expected


@pytest.mark.parametrize("place", ["forward", "draft"])
def test_a_fault_in_what_ranks_do_together_ends_the_group(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def broken(*_args: object) -> None:
        raise ValueError("the test's own")

    def body(llm: LLM) -> str:
        if place == "forward":
            monkeypatch.setattr(Engine, "_forward", broken)
        else:
            monkeypatch.setattr(Proposer, "propose", broken)
        sampling = SamplingParams(temperature=0.5, seed=1, max_tokens=8, ignore_eos=True)
        with pytest.raises(LostRankError, match=f"in the {place} of several ranks") as first:
            llm.generate(["ab"], sampling)
        with pytest.raises(LostRankError, match="parted by an earlier fault"):
            llm.generate(["ab"], sampling)
        return str(first.value)

    def follow(follower: Follower) -> None:
        with pytest.raises(LostRankError):
            follower.run()

    case = options(2, speculation="off" if place == "forward" else 2)
    with pytest.raises(LostRankError):
        led(folder, case, lambda llm: _then_part(llm, body), Ranks(follow=follow))


def _then_part(llm: LLM, body: Callable[[LLM], str]) -> str:
    """Run a body and break the threads' table, as a leader's exit breaks connections."""
    body(llm)
    raise LostRankError("the leader ends")


def test_a_rank_with_other_pages_is_told_apart_at_its_step(folder: Path) -> None:
    steps = []

    def follow(follower: Follower) -> None:
        follower._owners.pages._free.pop(0)
        with pytest.raises(RankDisagreementError, match=r"rank 1 disagrees .* at step 0") as one:
            follower.run()
        steps.append(str(one.value))
        raise LostRankError("the rank ends")

    with pytest.raises(LostRankError):
        led(folder, options(2, speculation="off"), texts, Ranks(follow=follow))
    assert steps


@pytest.mark.parametrize("steps", [60, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(3600)
def test_noise_on_one_rank_changes_no_agreement(tmp_path: Path, steps: int) -> None:
    """Logits are near ties and one rank is one ulp off everywhere: it still emits the leader's."""
    head = torch.randn(1, 128).expand(VOCAB, -1) + 1e-6 * torch.randn(VOCAB, 128)
    write_miniature(tmp_path, seed=4, weights={"head.weight": head}, **SHAPE)
    write_tokenizer(tmp_path)
    followed: list[list[int]] = []

    def off_by_one(part: Tensor) -> Tensor:
        bits = part.view(torch.int32) if part.dtype is torch.float32 else None
        return part if bits is None else (bits + (bits != 0)).view(torch.float32)

    def prepare(group: ThreadGroup) -> None:
        if group.rank == 1:
            group.noise = off_by_one

    def follow(follower: Follower) -> None:
        store = follower._owners.tokens
        own = store.release
        store.release = lambda s: (followed.append(list(store._known.get(s, []))), own(s))[1]  # type: ignore[method-assign]
        follower.run()

    def body(llm: LLM) -> list[int]:
        sampling = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
        (result,) = llm.generate(["abc"], sampling)
        llm.generate(["x"], SamplingParams(temperature=0, max_tokens=1))  # lets the first one go
        return [*llm.tokenizer.prompt("abc"), *result.token_ids]

    case = options(2, speculation="off", kv_tokens=steps + 256)
    told = led(tmp_path, case, body, Ranks(prepare, follow))
    assert told in followed


@pytest.mark.parametrize("case", ["target", "verify"])
def test_ranks_take_up_the_same_prefixes(folder: Path, case: str) -> None:
    """Each rank copies its own rings; the leader alone looks up, the others are told how much."""
    texts = ["import os\n" * 40, "import os\n" * 30 + "def f(x):\n" * 12, "import os\n" * 26 + "x"]

    def taken(llm: LLM) -> list[tuple[object, ...]]:
        sampling = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logprobs=3)
        free, found = llm._runtime.engine.free, []
        for text in [*texts, *texts]:
            (result,) = llm.generate([text], sampling)
            found.append((result.token_ids, result.logprobs, result.cached_tokens))
            assert llm._runtime.engine.free == free
        return found

    room = {"kv_tokens": 1024, **CASES[case]}  # less than all of them need: pages are taken back
    with LLM.open(str(folder), options(1, **room, prefix_cache="off")) as alone:
        expected = [told[:2] for told in taken(alone)]
    with LLM.open(str(folder), options(1, **room)) as alone:
        hits = [told[2] for told in taken(alone)]
    assert sum(hit > 0 for hit in hits) >= 3
    for ranks in (2, 4):
        found = led(folder, options(ranks, **room), taken)
        assert [told[:2] for told in found] == expected
        assert [told[2] for told in found] == hits
