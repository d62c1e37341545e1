"""Log probabilities of a prompt's own tokens: the model's, whatever the steps are cut into."""

from pathlib import Path

import pytest
import torch

from deskside.checkpoint.index import Checkpoint
from deskside.core import FinishReason, Request, SamplingParams
from deskside.errors import InputError
from deskside.kernels import native
from deskside.layout.kv import KvFormat
from deskside.llm import LLM, Result
from deskside.model.weights import load
from deskside.ops.opset import OpSet
from deskside.scheduler.admission import Admissions
from deskside.scheduler.scheduler import SCORED_ROWS, Scheduler, StepLimits
from tests.equivalence.test_engine import VOCAB, alone, opened, params
from tests.rig import Rig

PROMPTS = ["x" * 121, "q", "def f(x):", "y" * 300]
SCORED = params(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=True)
NO_TOKEN = SamplingParams(temperature=0, max_tokens=0, logprobs=3, prompt_logprobs=True)


@pytest.fixture(scope="module")
def expected(plain: LLM) -> list[Result]:
    return [alone(plain, prompt, SCORED) for prompt in PROMPTS]


def test_they_are_the_models_own(drafting: Path) -> None:
    llm = opened(drafting, numerics="exact", speculation="off")
    rig = Rig(
        load(Checkpoint.open(drafting)),
        llm.plan.spec,
        KvFormat.FP8,
        OpSet().replaced(native.bodies()),
        exact=True,
    )
    for prompt in PROMPTS:
        result = alone(llm, prompt, SCORED)
        ids = llm.tokenizer.prompt(prompt)
        rig.reset()
        rows = rig.chunked(ids, [len(ids)])[:-1]
        assert len(result.prompt_logprobs) == len(ids) - 1
        for token, one, logits in zip(ids[1:], result.prompt_logprobs, rows, strict=True):
            numbers = torch.log_softmax(logits.double(), 0)
            assert one.logprob == float(numbers[token])
            values, tokens = numbers.sort(descending=True, stable=True)
            assert one.top == tuple(zip(tokens[:3].tolist(), values[:3].tolist(), strict=True))


@pytest.mark.parametrize("chunk", [1, 7, 64, 128, 129, 2048])
def test_chunks_company_and_speculation_change_no_bit(
    drafting: Path, expected: list[Result], chunk: int
) -> None:
    llm = opened(drafting, prefill_chunk=chunk, step_tokens=chunk, speculation=3)
    for result, want in zip(llm.generate(PROMPTS, SCORED), expected, strict=True):
        assert result.prompt_logprobs == want.prompt_logprobs
        assert result.token_ids == want.token_ids
        assert result.logprobs == want.logprobs


def test_asking_changes_no_token_and_who_does_not_ask_gets_none(
    plain: LLM, expected: list[Result]
) -> None:
    silent = plain.generate(PROMPTS, params(temperature=0, max_tokens=6))
    assert [one.token_ids for one in silent] == [one.token_ids for one in expected]
    assert not any(one.prompt_logprobs for one in silent)


def test_a_request_for_no_token_reads_its_prompt_and_ends(
    plain: LLM, expected: list[Result]
) -> None:
    free = plain._runtime.engine.free
    for prompt, want in zip(PROMPTS, expected, strict=True):
        result = alone(plain, prompt, NO_TOKEN)
        assert result.prompt_logprobs == want.prompt_logprobs
        assert (result.token_ids, result.text) == ((), "")
        assert result.finish is FinishReason.LENGTH
        assert plain._runtime.engine.free == free
    together = plain.generate(PROMPTS, NO_TOKEN)
    assert [one.prompt_logprobs for one in together] == [one.prompt_logprobs for one in expected]
    with pytest.raises(InputError, match="max-tokens must be at least 1"):
        SamplingParams(max_tokens=0)


def test_a_prompt_as_long_as_the_capacity_can_be_scored(drafting: Path) -> None:
    llm = opened(drafting, kv_tokens=256)
    result = alone(llm, "z" * 255, NO_TOKEN)
    assert len(result.prompt_logprobs) == 255


def test_no_step_gives_logits_to_more_prompt_rows_than_were_planned() -> None:
    scheduler = Scheduler(Admissions(100, 4, VOCAB), StepLimits(2048, 256))
    for _ in range(2):
        scheduler.submit(Request((5,) * 400, NO_TOKEN))
    scheduler.submit(Request((5,) * 400))
    rows = {span.sequence: span.rows for span in scheduler.plan_step().spans}
    assert rows == {0: SCORED_ROWS, 2: 400}


def test_rows_that_are_no_numbers_end_the_request(
    drafting: Path, expected: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = opened(drafting, speculation="off")
    forward = llm._runtime.engine._model.forward

    def broken(batch, state, *more):  # type: ignore[no-untyped-def]
        logits = forward(batch, state, *more)
        if len(batch.logit_rows) > 50:
            logits[40, 7] = torch.inf
        return logits

    monkeypatch.setattr(llm._runtime.engine._model, "forward", broken)
    free = llm._runtime.engine.free
    results = llm.generate(PROMPTS, SCORED)
    assert [one.finish for one in results].count(FinishReason.ERROR) == 2, "the two long ones"
    for result, want in zip(results, expected, strict=True):
        if result.finish is FinishReason.ERROR:
            assert result.fault is not None
            assert result.fault.startswith("NanLogitsError")
        else:
            assert result.prompt_logprobs == want.prompt_logprobs
    assert llm._runtime.engine.free == free
