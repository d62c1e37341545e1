"""Trains the byte-level BPE tokenizer of the small model (stage 2 of the recipe).

Runs of newlines with the indentation that follows stay one unit, so Python's layout costs about
one token a line. DeepSeek's control tokens keep their names: three special ones first, the rest
at the end of the vocabulary.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
TAIL = (
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜extracted_url｜>",
    "<｜read_url｜>",
)
NOISE = "<｜place▁holder▁no▁799｜>"

SPLIT = (
    r"(?:\r?\n)+[ \t]*"  # line ends and the next line's indentation
    r"| ?[\p{L}_]+"  # words and identifiers, one blank before them
    r"|\p{N}{1,3}"  # short runs of digits
    r"| ?[^\s\p{L}\p{N}_]+"  # punctuation
    r"|[ \t]+(?=[ \t]\S)|\s+"  # what blanks are left
)


def new_tokenizer() -> Tokenizer:
    """An untrained tokenizer with the splitting rules."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """Learns the merges and adds the control tokens; `vocab_size` ids in all."""
    tokenizer = new_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAIL) - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(HEAD),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in TAIL])
    tokenizer.add_tokens([AddedToken(NOISE, special=True, normalized=False)])
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"vocabulary has {tokenizer.get_vocab_size()} ids, wanted {vocab_size}")
    return tokenizer


def sample_texts(corpus: Path, every: int) -> Iterator[str]:
    """Every n-th document."""
    with corpus.open() as stream:
        for index, line in enumerate(stream):
            if index % every == 0:
                yield json.loads(line)["text"]


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json without blanks, and the small file of settings beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.loads(tokenizer.to_str(pretty=False))
    text["model"]["merges"] = [
        pair if isinstance(pair, str) else " ".join(pair) for pair in text["model"]["merges"]
    ]
    compact = json.dumps(text, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(compact, encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": HEAD[0],
        "eos_token": HEAD[1],
        "pad_token": HEAD[2],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
    }
    text_settings = json.dumps(settings, ensure_ascii=False, indent=2)
    (folder / "tokenizer_config.json").write_text(text_settings + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="train.jsonl of stage 1")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--every", type=int, default=6, help="use every n-th document")
    args = parser.parse_args()
    save(train(sample_texts(args.corpus, args.every), args.vocab_size), args.out)


if __name__ == "__main__":
    main()
