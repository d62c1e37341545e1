"""Measures a drafter on held-out files: acceptance, tokens a verification, calibration.

The trunk continues prompts of 256 tokens by 256; then every position's block is drafted at once.
Given the text, proposal k of a block is accepted with probability min(1, q/p) of the text's own
token (temperature 0: when the argmax agrees), independently, so walking over the text with those
draws is distributed as speculative decoding at full width is. Steps inside a repeated 32-gram are
left out of one of the two figures.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.corpus import hashed_share
from training.drafter import Drafter, DraftShape, every_anchor
from training.export import load_checkpoint
from training.generate import write_on
from training.model import Mode, Trunk
from training.shape import Shape
from training.train import narrow

if TYPE_CHECKING:
    from collections.abc import Iterable

GRAM = 32
BINS = 10


@dataclass
class Step:
    """One verification at full width: a raw confidence and a verdict for each row reached."""

    file: int
    repeated: bool
    confidence: list[float] = field(default_factory=list)
    verdict: list[bool] = field(default_factory=list)


def prompts_of(held_out: Path, tokenizer_file: Path, count: int, length: int) -> Tensor:
    """The first `length` ids of up to `count` files, projects taking turns, [files, length]."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    queues: dict[str, list[list[int]]] = {}
    documents = [json.loads(line) for line in held_out.read_text().splitlines()]
    for document in sorted(documents, key=lambda d: hashed_share(f"draft/{d['path']}")):
        ids = [0, *tokenizer.encode(document["text"], add_special_tokens=False).ids]
        if len(ids) >= length:
            queues.setdefault(document["project"], []).append(ids[:length])
    found: list[list[int]] = []
    while len(found) < count and any(queues.values()):
        found.extend(queue.pop(0) for queue in queues.values() if queue)
    return torch.tensor(found[:count])


def repeats(ids: list[int]) -> list[bool]:
    """Which positions lie inside a 32-gram that has occurred before."""
    seen: set[tuple[int, ...]] = set()
    marked = [False] * len(ids)
    for end in range(GRAM, len(ids) + 1):
        gram = tuple(ids[end - GRAM : end])
        if gram in seen:
            marked[end - GRAM : end] = [True] * GRAM
        seen.add(gram)
    return marked


@torch.no_grad()
def walk(
    trunk: Trunk, drafter: Drafter, prompts: Tensor, out: int, temperature: float, seed: int
) -> list[Step]:
    """Continues every prompt and replays speculative decoding over the continuations."""
    wanted = torch.full((len(prompts),), temperature)
    text = write_on(trunk, prompts, prompts.shape[1] + out + 1, wanted, seed)
    random = torch.Generator().manual_seed(seed)
    steps: list[Step] = []
    for start in range(0, len(text), 8):
        ids = text[start : start + 8]
        features, last = trunk.features(ids[:, :-1], Mode(True), drafter.draft.targets)
        size = trunk.shape.sliding_window
        anchors = every_anchor(len(ids), ids.shape[1] - 1, size, ids.device)
        rows, counted, _ = drafter(ids, anchors, features, last, trunk, Mode(True))
        chance = (rows.share if temperature else rows.match.float()).float().cpu()
        verdict = torch.rand(chance.shape, generator=random) < chance
        for row in range(len(ids)):
            found = replay(
                ids[row].tolist(), prompts.shape[1], verdict[row].tolist(),
                rows.confidence[row].float().tolist(), counted[row].all(-1).tolist(),
            )  # fmt: skip
            for step in found:
                step.file = start + row
            steps.extend(found)
    return steps


def replay(
    ids: list[int],
    start: int,
    verdict: list[list[bool]],
    confidence: list[list[float]],
    whole: list[bool],
) -> list[Step]:
    """The verifications of one text from its first new token to its end or EOS."""
    marked, steps, anchor = repeats(ids), [], start
    while anchor < len(whole) and whole[anchor] and 1 not in ids[start : anchor + 1]:
        step = Step(0, marked[anchor])
        for sure, accepted in zip(confidence[anchor], verdict[anchor], strict=True):
            step.confidence.append(sure)
            step.verdict.append(accepted)
            if not accepted:
                break
        steps.append(step)
        anchor += sum(step.verdict) + 1
    return steps


def figures(steps: Iterable[Step], block: int) -> dict[str, object]:
    """Acceptance of each position given those before it, and mean tokens a verification."""
    steps = list(steps)
    reached, accepted = [0] * block, [0] * block
    for step in steps:
        for k, verdict in enumerate(step.verdict):
            reached[k] += 1
            accepted[k] += verdict
    return {
        "verifications": len(steps),
        "tokens_per_verification": round(1 + sum(accepted) / max(len(steps), 1), 4),
        "acceptance": [round(a / max(r, 1), 4) for a, r in zip(accepted, reached, strict=True)],
        "reached": reached,
    }


def pairs(steps: Iterable[Step], k: int) -> tuple[Tensor, Tensor]:
    """Raw confidences and verdicts of position k."""
    found = [(s.confidence[k], float(s.verdict[k])) for s in steps if len(s.verdict) > k]
    both = torch.tensor(found or [(0.0, 0.0)])
    return both[:, 0], both[:, 1]


def fit_temperatures(steps: list[Step], block: int) -> list[float]:
    """For each position the temperature of least negative log-likelihood."""
    grid = torch.exp(torch.linspace(math.log(0.2), math.log(8.0), 400))
    out = []
    for k in range(block):
        logit, verdict = pairs(steps, k)
        scaled = logit[None] / grid[:, None]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            scaled, verdict[None].expand_as(scaled), reduction="none"
        ).mean(1)
        out.append(round(float(grid[loss.argmin()]), 4))
    return out


def calibration(steps: list[Step], temperatures: list[float]) -> dict[str, object]:
    """Expected against measured acceptance in ten bins of all positions together."""
    expected, measured = [], []
    for k, temperature in enumerate(temperatures):
        logit, verdict = pairs(steps, k)
        expected.append(torch.sigmoid(logit / temperature))
        measured.append(verdict)
    sure, verdict = torch.cat(expected), torch.cat(measured)
    place = (sure * BINS).long().clamp(max=BINS - 1)
    error, table = 0.0, []
    for index in range(BINS):
        here = place == index
        if not here.any():
            continue
        row = (int(here.sum()), sure[here].mean().item(), verdict[here].mean().item())
        error += row[0] / len(sure) * abs(row[1] - row[2])
        table.append([row[0], round(row[1], 4), round(row[2], 4)])
    return {"error": round(error, 4), "bins": table}


def evaluate(
    trunk: Trunk, drafter: Drafter, prompts: Tensor, out: int, seed: int = 1
) -> dict[str, object]:
    """Acceptance, tokens a verification and calibration on one set of prompts.

    A checkpoint has one set of confidence temperatures and is served at every sampling
    temperature, so they are fitted on both walks together; half of the files fit, the rest judge.
    """
    block = drafter.draft.block
    report: dict[str, object] = {"files": len(prompts)}
    walks = {t: walk(trunk, drafter, prompts, out, t, seed) for t in (0.0, 1.0)}
    fitted = fit_temperatures([s for w in walks.values() for s in w if s.file % 2 == 0], block)
    for temperature, steps in walks.items():
        fresh = [s for s in steps if not s.repeated]
        rest = [s for s in steps if s.file % 2]
        report[f"temperature {temperature:.0f}"] = {
            "all": figures(steps, block),
            "outside repeats": figures(fresh, block),
            "calibration, raw": calibration(rest, [1.0] * block),
            "calibration": calibration(rest, fitted),
        }
    report["confidence_temperatures"] = fitted
    return report


def load_pair(folder: Path, device: torch.device) -> tuple[Trunk, Drafter]:
    """Trunk and drafter of a checkpoint folder."""
    config = json.loads((folder / "config.json").read_text())
    shape = Shape.read(folder / "config.json")
    trunk, drafter = Trunk(shape), Drafter(shape, DraftShape.of(config))
    trunk.load_state_dict(load_checkpoint(folder))
    drafter.load_state_dict(load_checkpoint(folder, drafter=True))
    for model in (trunk, drafter):
        narrow(model, device)
        model.to(device).requires_grad_(False)
    return trunk, drafter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder with trunk and drafter")
    parser.add_argument("--held-out", type=Path, required=True, help="held_out.jsonl of stage 1")
    parser.add_argument("--prose", type=Path, help="held_out_prose.jsonl of stage 1")
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--out-tokens", type=int, default=256)
    parser.add_argument("--write-temperatures", action="store_true", help="into config.json")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trunk, drafter = load_pair(args.model, device)
    report: dict[str, object] = {}
    for name, file in (("code", args.held_out), ("prose", args.prose)):
        if file:
            prompts = prompts_of(file, args.model / "tokenizer.json", args.files, args.prompt)
            report[name] = evaluate(trunk, drafter, prompts, args.out_tokens)
    print(json.dumps(report, indent=1))
    if args.write_temperatures:
        code = cast("dict[str, object]", report["code"])
        write_temperatures(args.model, cast("list[float]", code["confidence_temperatures"]))


def write_temperatures(folder: Path, temperatures: list[float]) -> None:
    """Stores one temperature for each position under a key of our own."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["deskside_confidence_temperatures"] = temperatures
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
