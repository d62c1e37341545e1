"""Packs the corpus for the machine that trains (stage 3), and reads it back there as token ids.

Text compresses better than token ids, so documents travel as text in a few PPMd streams that are
unpacked and tokenised in parallel where the training runs.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

ORDERS, MEMORY = (16, 15, 14, 12), 1 << 30
SEPARATOR = "\x00"
Ids = np.ndarray[tuple[int], np.dtype[np.uint16]]


def compress(text: str, target: Path) -> int:
    """One shard; returns its packed size.

    The decoder now and then stops early, or gives up, at one model order and not at another, so
    every shard is read back before it counts.
    """
    import pyppmd

    data = text.encode()
    for order in ORDERS:
        encoder = pyppmd.Ppmd7Encoder(order, MEMORY)
        packed = encoder.encode(data) + encoder.flush()
        target.write_bytes(len(data).to_bytes(8, "little") + bytes([order]) + packed)
        with suppress(ValueError):  # the decoder's word for damaged data
            if expand(target) == text:
                return len(packed)
    raise ValueError(f"{target.name} does not read back at any order")


def expand(source: Path) -> str:
    """The text of one shard."""
    import pyppmd

    raw = source.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    data: bytes = pyppmd.Ppmd7Decoder(raw[8], MEMORY).decode(raw[9:], size)
    return data.decode(errors="replace")


def tokens_of(source: Path, tokenizer_file: Path) -> Ids:
    """BOS + text + EOS of every document of a shard, end to end."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    parts: list[Ids] = []
    for text in expand(source).split(SEPARATOR):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        parts.append(np.array([0, *ids, 1], dtype=np.uint16))
    return np.concatenate(parts)


def load_tokens(folder: Path, tokenizer_file: Path, workers: int) -> Ids:
    """All shards, in order; a folder that holds `tokens.npy` has been read already."""
    if (folder / "tokens.npy").exists():
        known: Ids = np.load(folder / "tokens.npy")
        return known
    shards = sorted(folder.glob("*.ppmd"))
    with ProcessPoolExecutor(workers) as pool:
        parts = list(pool.map(tokens_of, shards, [tokenizer_file] * len(shards)))
    return np.concatenate(parts)


def without(tokens: Ids, file: Path) -> Ids:
    """The documents whose numbers `file` does not list; a document begins with BOS."""
    starts = np.flatnonzero(tokens == 0)
    kept = np.ones(len(starts), dtype=bool)
    listed = json.loads(file.read_text())
    if listed["documents"] != len(starts):
        raise ValueError(f"{file.name} is about {listed['documents']} documents, not {len(starts)}")
    kept[listed["prose"]] = False
    return tokens[np.repeat(kept, np.diff(starts, append=len(tokens)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="train.jsonl of stage 1")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with args.corpus.open() as stream:
        documents = [json.loads(line) for line in stream]
    texts = [document["text"] for document in documents]
    prose = [i for i, document in enumerate(documents) if document["kind"] == "prose"]
    listed = {"documents": len(documents), "prose": prose}
    (args.out / "prose.json").write_text(json.dumps(listed))
    total = sum(map(len, texts))
    groups: list[list[str]] = [[] for _ in range(args.shards)]
    done = 0
    for text in texts:
        groups[min(done * args.shards // total, args.shards - 1)].append(text)
        done += len(text)
    joined = [SEPARATOR.join(group) for group in groups]
    targets = [args.out / f"{index:02d}.ppmd" for index in range(args.shards)]
    with ProcessPoolExecutor(args.workers) as pool:
        sizes = list(pool.map(compress, joined, targets))
    print(f"{total} characters in {sum(sizes)} bytes")


if __name__ == "__main__":
    main()
