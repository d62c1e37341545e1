"""A small checkpoint with a drafter, and a model opened without speculation beside it."""

from pathlib import Path

import pytest

from deskside.llm import LLM
from tests.equivalence.test_engine import VOCAB, opened, write_tokenizer
from tests.miniature import write_miniature


@pytest.fixture(scope="session")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafting")
    write_miniature(folder, vocab=VOCAB, seed=4, drafter=True)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def plain(drafting: Path) -> LLM:
    return opened(drafting, speculation="off")
