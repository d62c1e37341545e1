"""The whole engine: a request's tokens depend on its prompt, options and seed, and nothing else."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers

from deskside.config.engine import EngineOptions
from deskside.core import FinishReason, SamplingParams
from deskside.errors import CapacityError, InputError
from deskside.llm import LLM, Result
from tests.miniature import write_miniature

PROMPTS = ["def f(x):", "import os\n" * 40, "x", "class A:\n    pass\n" * 30]
VOCAB = 512


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of single bytes with the control tokens that a checkpoint names."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    control = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
    names = [*control, *alphabet]
    names += [f"<unused {number}>" for number in range(VOCAB - len(names))]
    inner = Inner(models.BPE({name: number for number, name in enumerate(names)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(control)
    inner.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("miniature")
    write_miniature(folder, vocab=VOCAB, seed=4)
    write_tokenizer(folder)
    return folder


def opened(folder: Path | str, **options: object) -> LLM:
    defaults = {"kv_tokens": 4096, "threads": 1, "max_running": 4}
    return LLM.open(str(folder), EngineOptions(**{**defaults, **options}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return opened(folder)


def params(**options: object) -> SamplingParams:
    defaults = {"temperature": 0.9, "seed": 3, "max_tokens": 24, "ignore_eos": True}
    return SamplingParams(**{**defaults, **options})  # type: ignore[arg-type]


def alone(llm: LLM, prompt: str, sampling: SamplingParams) -> Result:
    *_, last = llm.stream(prompt, sampling)
    assert last.result is not None
    return last.result


def same(one: Result, other: Result) -> bool:
    return (one.text, one.token_ids, one.finish) == (other.text, other.token_ids, other.finish)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_company_changes_nothing(llm: LLM, temperature: float) -> None:
    sampling = params(temperature=temperature)
    together = llm.generate(PROMPTS * 2, sampling)
    singles = [alone(llm, prompt, sampling) for prompt in PROMPTS]
    assert all(same(a, b) for a, b in zip(together, singles * 2, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {"prefill_chunk": 7},
        {"prefill_chunk": 128, "step_tokens": 3},
        {"threads": 2},
        {"max_running": 1},
    ],
)
def test_options_of_speed_change_nothing(
    folder: Path, llm: LLM, options: dict[str, object]
) -> None:
    other = opened(folder, **options)
    for ours, theirs in zip(
        other.generate(PROMPTS, params()), llm.generate(PROMPTS, params()), strict=True
    ):
        assert same(ours, theirs)


def test_exact_numerics_depend_on_no_option_of_speed(folder: Path) -> None:
    one = opened(folder, numerics="exact")
    other = opened(folder, numerics="exact", prefill_chunk=7, step_tokens=3, threads=2)
    for ours, theirs in zip(
        one.generate(PROMPTS, params()), other.generate(PROMPTS, params()), strict=True
    ):
        assert same(ours, theirs)


def test_seeds(llm: LLM) -> None:
    first = alone(llm, "x", params(seed=1))
    assert same(first, alone(llm, "x", params(seed=1)))
    assert not same(first, alone(llm, "x", params(seed=2)))
    unseeded = alone(llm, "x", params(seed=None))
    assert same(unseeded, alone(llm, "x", params(seed=unseeded.seed)))


def test_streamed_text_is_the_text_of_the_tokens(llm: LLM) -> None:
    deltas = list(llm.stream("x", params(max_tokens=60)))
    result = deltas[-1].result
    assert result is not None
    assert "".join(delta.text for delta in deltas) == result.text
    assert [t for delta in deltas for t in delta.tokens] == list(result.token_ids)
    assert result.text == llm.tokenizer.decode(result.token_ids)


def test_end_token_and_limit(llm: LLM) -> None:
    free = alone(llm, "x", params())
    assert (free.finish, len(free.token_ids)) == (FinishReason.LENGTH, 24)
    place = next(i for i in range(3, 20) if free.token_ids[i] not in free.token_ids[:i])
    stopped = alone(llm, "x", params(stop_token_ids=(free.token_ids[place],)))
    assert stopped.token_ids == free.token_ids[: place + 1]
    assert stopped.finish is FinishReason.STOP


def test_leaving_early_frees_everything(llm: LLM) -> None:
    before = alone(llm, "x", params())
    for _ in range(20):
        stream = llm.stream("y" * 300, params())
        next(stream)
        stream.close()
    assert same(before, alone(llm, "x", params()))
    assert len(llm.generate(["a"] * 4, params())) == 4


def test_too_long_is_one_line_with_both_numbers(llm: LLM) -> None:
    with pytest.raises(InputError, match=r"4097.*4096.*--kv-tokens") as refused:
        next(llm.stream([5] * 4073, params()))
    assert refused.value.exit_code == 2
    assert alone(llm, "x", params()).finish is FinishReason.LENGTH


def test_what_does_not_fit_is_refused_before_weights_are_read(folder: Path) -> None:
    with pytest.raises(CapacityError, match="--kv-tokens"):
        opened(folder, kv_tokens=2**40)


def test_the_plan_is_what_is_allocated(llm: LLM) -> None:
    assert llm.plan.capacity.nbytes == llm.state_bytes
