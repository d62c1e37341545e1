"""A fault at every numbered site of the engine, with the real model: one request is lost."""

from pathlib import Path

import pytest

from deskside.core import FinishReason
from deskside.injection import Injection, Site
from deskside.llm import LLM, Result
from tests.equivalence.test_engine import VOCAB, opened, params, same, write_tokenizer
from tests.faults.test_step import held
from tests.miniature import write_miniature

EACH = (Site.ADMIT, Site.LEARN)
TOGETHER = (
    Site.DRAFT,
    Site.RESERVE,
    Site.INPUTS,
    Site.FORWARD,
    Site.EXPERTS,
    Site.LOGITS,
    Site.SAMPLE,
    Site.STOP,
    Site.COMMIT,
)
LOADING = (Site.READ, Site.BANK, Site.STATE)
PROMPTS = ["x" * 121, "def f(x):", "y" * 250]
SAMPLING = params(temperature=0.8, max_tokens=14, frequency_penalty=0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sites")
    write_miniature(folder, vocab=VOCAB, seed=4, drafter=True)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return opened(folder, speculation=3, test_faults=("later",))


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[Result]:
    return llm.generate(PROMPTS, SAMPLING)


@pytest.mark.parametrize("act", ["memory", "error"])
@pytest.mark.parametrize("site", [*EACH, *TOGETHER], ids=lambda site: site.name)
def test_one_request_is_lost(llm: LLM, expected: list[Result], site: Site, act: str) -> None:
    before = held(llm)
    times = 1 if site in EACH else 2
    after = 1 if site is Site.ADMIT else 4
    llm._runtime.probe.arm([Injection.parse(f"{site.value}:{act}:{after}:{times}")])
    results = llm.generate(PROMPTS, SAMPLING)
    llm._runtime.probe.arm([])
    assert held(llm) == before
    assert [one.finish for one in results].count(FinishReason.ERROR) == 1
    for result, want in zip(results, expected, strict=True):
        if result.finish is FinishReason.ERROR:
            assert result.fault is not None
            assert f"injected at site {site.value} " in result.fault
            assert result.token_ids == want.token_ids[: len(result.token_ids)]
        else:
            assert same(result, want)


@pytest.mark.parametrize("after", range(0, 40, 3))
def test_memory_that_is_short_wherever_it_is(llm: LLM, expected: list[Result], after: int) -> None:
    """The n-th run of any layer's experts fails, and from then on none does."""
    llm._runtime.probe.arm([Injection.parse(f"experts:memory:{after}:1")])
    assert all(map(same, llm.generate(PROMPTS, SAMPLING), expected))
    llm._runtime.probe.arm([])


def test_numbers_that_are_none(llm: LLM, expected: list[Result]) -> None:
    before = held(llm)
    llm._runtime.probe.arm([Injection.parse("logits:nan:3:2")])
    results = llm.generate(PROMPTS, SAMPLING)
    llm._runtime.probe.arm([])
    (lost,) = [one for one in results if one.finish is FinishReason.ERROR]
    assert lost.fault is not None
    assert lost.fault.startswith("NanLogitsError")
    assert held(llm) == before
    assert all(map(same, llm.generate(PROMPTS, SAMPLING), expected))


@pytest.mark.parametrize("site", LOADING, ids=lambda site: site.name)
def test_a_load_that_fails_can_be_tried_again(
    folder: Path, expected: list[Result], site: Site
) -> None:
    with pytest.raises(MemoryError, match=f"injected at site {site.value} "):
        opened(folder, test_faults=(f"{site.value}:memory",))
    again = opened(folder, speculation=3)
    assert all(map(same, again.generate(PROMPTS, SAMPLING), expected))
