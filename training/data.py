"""Batches for training and windows for measuring, both as rows of token ids.

A newline and the indentation after it are one token, so a prompt that ends in a bare newline would
be one that training never showed. `Splits` takes a share of such tokens apart, anew each epoch.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

if TYPE_CHECKING:
    from pathlib import Path

    from training.pack import Ids


class Splits:
    """The ways to cut tokens that begin with a newline and hold more, and the share to cut."""

    def __init__(self, tokenizer_file: Path, share: float) -> None:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self.share = share
        self.ways: dict[int, list[Ids]] = {}
        for token in range(tokenizer.get_vocab_size()):
            text = tokenizer.decode([token], skip_special_tokens=False)
            if len(text) < 2 or text[0] != "\n" or text.strip():
                continue
            cuts = range(1, len(text) - len(text.lstrip("\n")) + 1)
            halves = [(text[:cut], text[cut:]) for cut in cuts if cut < len(text)]
            self.ways[token] = [
                np.array([i for half in pair for i in tokenizer.encode(half).ids], np.uint16)
                for pair in halves
            ]

    def apply(self, tokens: Ids, random: np.random.Generator) -> Ids:
        """The same text with a share of its newline tokens cut."""
        known = np.zeros(1 << 16, dtype=bool)
        known[list(self.ways)] = True
        places = np.flatnonzero(known[tokens])
        places = places[random.random(len(places)) < self.share]
        length = np.ones(len(tokens), dtype=np.int64)
        chosen: list[tuple[Ids, np.ndarray]] = []
        draw, found = random.random(len(places)), tokens[places]
        for token, ways in self.ways.items():
            of_token = np.flatnonzero(found == token)
            which = (draw[of_token] * len(ways)).astype(np.int64)
            for index, way in enumerate(ways):
                here = places[of_token[which == index]]
                length[here] = len(way)
                chosen.append((way, here))
        start = np.cumsum(length) - length
        out = np.repeat(tokens, length)
        for way, here in chosen:
            out[start[here][:, None] + np.arange(len(way))] = way
        return out


class Batches:
    """Endless rows of documents laid end to end, the documents shuffled anew each epoch."""

    def __init__(
        self,
        tokens: Ids,
        batch: int,
        length: int,
        seed: int,
        device: torch.device,
        splits: Splits | None = None,
    ) -> None:
        self.tokens, self.batch, self.length, self.device = tokens, batch, length, device
        self.splits = splits
        starts = np.flatnonzero(tokens == 0)
        self.spans = np.stack((starts, np.append(starts[1:], len(tokens))), 1)
        self.random = np.random.default_rng(seed)
        self.epoch = 0
        self.thread = ThreadPoolExecutor(1)
        self.coming = self.thread.submit(self.lay_out)
        self.refill()

    def refill(self) -> None:
        """Moves the next epoch to the device; the one after is laid out meanwhile."""
        flat, self.order = self.coming.result()
        self.coming = self.thread.submit(self.lay_out)
        self.stream = flat.to(self.device)
        self.next, self.epoch = 0, self.epoch + 1

    def lay_out(self) -> tuple[Tensor, np.ndarray]:
        """All documents in a new order, and the order in which rows are taken."""
        order = self.random.permutation(len(self.spans))
        stream = np.concatenate([self.tokens[a:b] for a, b in self.spans[order]])
        if self.splits:
            stream = self.splits.apply(stream, self.random)
        rows = (len(stream) - 1) // self.length
        rows -= rows % self.batch
        flat = torch.from_numpy(stream[: rows * self.length + 1].astype(np.int16))
        return flat, self.random.permutation(rows).reshape(-1, self.batch)

    def take(self) -> Tensor:
        """The next [batch, length + 1] ids."""
        if self.next == len(self.order):
            self.refill()
        rows = torch.from_numpy(self.order[self.next]).to(self.device, non_blocking=True)
        self.next += 1
        offset = torch.arange(self.length + 1, device=self.device)
        return self.stream[rows[:, None] * self.length + offset].long()


@dataclass(frozen=True)
class Windows:
    """Held-out text cut into overlapping rows; `counted` marks the predictions that count."""

    ids: Tensor
    counted: Tensor
    project: list[str]
    bytes: dict[str, int]


def held_out_windows(file: Path, tokenizer_file: Path, length: int) -> Windows:
    """Every document from its start; rows overlap by half so that context is never short."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    rows, masks, projects = [], [], []
    sizes: dict[str, int] = {}
    for line in file.read_text().splitlines():
        document = json.loads(line)
        text, project = document["text"], document["project"]
        sizes[project] = sizes.get(project, 0) + len(text.encode())
        ids = torch.tensor([0, *tokenizer.encode(text, add_special_tokens=False).ids, 1])
        done = 0
        for start in range(0, max(len(ids) - 1 - length // 2, 1), length // 2):
            piece = ids[start : start + length + 1]
            row = torch.full((length + 1,), 1)
            row[: len(piece)] = piece
            counted = torch.zeros(length, dtype=torch.bool)
            counted[done - start : len(piece) - 1] = True
            done = start + len(piece) - 1
            rows.append(row)
            masks.append(counted)
            projects.append(project)
    return Windows(torch.stack(rows), torch.stack(masks), projects, sizes)
