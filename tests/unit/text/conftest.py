"""A small byte-level BPE tokenizer with DeepSeek's control tokens by name."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from deskside.text.tokenizer import BOS, EOS, Tokenizer

CORPUS = (
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1)\n",
    "größer als πr² 你好 🙂\n",
)


def small_tokenizer() -> tokenizers.Tokenizer:
    """Train 300 ids on two lines; specials first, as the 0731 layout has them."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    inner.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return inner


@pytest.fixture(scope="session")
def inner() -> tokenizers.Tokenizer:
    """Return the library's own tokenizer, as the judge."""
    return small_tokenizer()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, inner: tokenizers.Tokenizer) -> Path:
    """Return a folder that holds tokenizer.json."""
    path = tmp_path_factory.mktemp("tokenizer")
    inner.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer as the package opens it."""
    return Tokenizer.open(folder)
