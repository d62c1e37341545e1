"""A worker that dies in the middle of a run: one line, code 4, and no request that bears it."""

import os
from pathlib import Path

import pytest

from deskside.cli import main
from deskside.config.engine import EngineOptions
from deskside.core import SamplingParams
from deskside.errors import LostWorkerError
from deskside.kernels import pool
from deskside.llm import LLM
from tests.miniature import write_miniature
from tests.unit.text.conftest import small_tokenizer

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("_native_defaults")]

PROMPT = list(range(2, 200))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("miniature")
    write_miniature(path)
    small_tokenizer().save(str(path / "tokenizer.json"))
    return path


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a worker")
def test_it_ends_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = EngineOptions(threads=2, kv_tokens=2048, max_running=2)
    with LLM.open(str(folder), options) as llm:
        pool.set_fault(1, "vanish")
        with pytest.raises(LostWorkerError, match=r"worker 1 .* died") as lost:
            llm.generate([PROMPT] * 100, SamplingParams(max_tokens=9))
        assert lost.value.exit_code == 4

    class Broken:
        def open(self, *_: object) -> LLM:
            raise lost.value

    assert main(["run", "x"], Broken()) == 4  # type: ignore[arg-type]
    assert capsys.readouterr().err.startswith("deskside: error: worker 1 ")
