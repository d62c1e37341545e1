"""The drafter that ships, in the package and in the code that trained it: the same numbers.

Both read the stored folder. The recipe draws all blocks of a text at once from whole-sequence
features, the package one block a step from rings, and with 16-bit activations in the experts.
"""

import json
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from deskside.core import SamplingParams
from deskside.engine.speculation import Speculator
from deskside.layout.folder import BUILTIN
from deskside.model.drafter import Drafter, Drafts
from tests.equivalence.test_engine import opened
from training.drafter import every_anchor
from training.evaluate_drafter import load_pair
from training.model import Mode, collapse, rms

FOLDER = BUILTIN / "deskside-mini"
PROMPT = '''"""Queues of work."""

import threading
from collections import deque


class Queue:
    """First in, first out."""

    def __init__(self, limit=None):
        self.items = deque()
        self.limit = limit
        self.lock = threading.Lock()

    def put(self, item):
        """Add an item; wait while the queue is full."""
        with self.lock:
            self.items.append(item)

    def get(self):
        """Remove and return the oldest item."""
        with self.lock:
'''
BLOCK = 5


@dataclass(frozen=True)
class Block:
    """What the package drafted at an anchor."""

    position: int
    tokens: Tensor
    logits: Tensor
    confidences: Tensor


@pytest.fixture(scope="module")
def drafted() -> tuple[list[int], list[Block]]:
    """A text and the blocks that the package drafted on the way."""
    llm = opened(FOLDER, speculation=BLOCK, fallback=False)
    speculator = llm._runtime.engine._speculation
    assert isinstance(speculator, Speculator)
    blocks: list[Block] = []
    drafter: Drafter = speculator.drafter
    draft = drafter.draft

    def recorded(*args: object) -> Drafts:
        found = draft(*args)  # type: ignore[arg-type]
        (anchor,) = args[0]  # type: ignore[misc]
        row = found.tokens[0], found.logits[0], found.confidences[0]
        blocks.append(Block(anchor.position, *(x.clone() for x in row)))
        return found

    drafter.draft = recorded  # type: ignore[method-assign]
    prompt = llm.tokenizer.prompt(PROMPT)
    *_, last = llm.stream(prompt, SamplingParams(temperature=0, max_tokens=80))
    assert last.result is not None
    return [*prompt, *last.result.token_ids], blocks


@torch.no_grad()
def recipe(ids: list[int], blocks: list[Block]) -> tuple[Tensor, Tensor]:
    """Logits [blocks, 5, vocab] and confidences [blocks, 5] of the recipe, same tokens before."""
    trunk, drafter = load_pair(FOLDER, torch.device("cpu"))
    window = trunk.shape.sliding_window
    padded = torch.tensor([ids + [2] * (-len(ids) % window)])
    features, _ = trunk.features(padded, Mode(True), drafter.draft.targets)
    anchors = every_anchor(1, padded.shape[1], window, padded.device)
    streams, _ = drafter.streams(padded, features, anchors, trunk, Mode(True))
    last = drafter.mtp[-1]
    hidden = collapse(streams, last.hc_head_fn, last.hc_head_base, last.hc_head_scale, trunk.shape)
    hidden = hidden.view(-1, BLOCK, hidden.shape[-1])[[block.position for block in blocks]]
    before = torch.stack(
        [torch.cat((torch.tensor([ids[b.position]]), b.tokens[:-1])) for b in blocks]
    )
    found, more = last.markov_head(before)
    logits = trunk.head(rms(hidden, last.norm.weight, trunk.shape.rms_norm_eps)) + more
    heat = json.loads((FOLDER / "config.json").read_text())["deskside_confidence_temperatures"]
    return logits, torch.sigmoid(last.confidence_head(hidden, found) / torch.tensor(heat))


def test_both_draft_the_same(drafted: tuple[list[int], list[Block]]) -> None:
    ids, blocks = drafted
    assert len(blocks) > 10
    logits, confidences = recipe(ids, blocks)
    ours = torch.stack([block.logits for block in blocks])
    distance = (torch.softmax(ours, -1) - torch.softmax(logits, -1)).abs().sum(-1) / 2
    sure = torch.stack([block.confidences for block in blocks])
    same = (ours.argmax(-1) == logits.argmax(-1)).float()
    # 0.007, 0.99 and 0.017 when this was written: rows are rounded, and a router may tip over.
    assert distance.mean() < 0.02
    assert same.mean() > 0.95
    assert (sure - confidences).abs().max() < 0.05
