"""Who computes changes no byte: a caller that works, one that waits, crowded and tied workers."""

import os
from pathlib import Path

import pytest

from deskside.config.engine import EngineOptions
from deskside.core import SamplingParams
from deskside.kernels import pool
from deskside.llm import LLM
from deskside.machine.placement import RankPlace
from tests.miniature import write_miniature
from tests.unit.text.conftest import small_tokenizer

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("_native_defaults")]

CPUS = tuple(sorted(os.sched_getaffinity(0)))
PROMPTS = [list(range(2, 302)), list(range(40, 3, -1)), [7]]


def crew(workers: int, *, works: bool, spin: bool, tied: bool) -> RankPlace:
    cpus = tuple((CPUS[n % len(CPUS)],) if tied else CPUS for n in range(workers))
    return RankPlace(0, (0,), CPUS, CPUS, cpus, works, spin)


def test_tokens_and_their_numbers_are_the_same(tmp_path: Path) -> None:
    write_miniature(tmp_path)
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=2)
    options = EngineOptions(threads=1, kv_tokens=2048, max_running=3, prefill_chunk=128)
    with LLM.open(str(tmp_path), options) as llm:
        alone = [(r.token_ids, r.logprobs) for r in llm.generate(PROMPTS, params)]
        for place in (
            crew(1, works=True, spin=True, tied=True),
            crew(2, works=False, spin=True, tied=True),
            crew(5, works=False, spin=False, tied=False),
        ):
            pool.set_workers(place)
            found = [(r.token_ids, r.logprobs) for r in llm.generate(PROMPTS, params)]
            assert found == alone
