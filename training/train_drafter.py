"""Trains the drafter on one GPU for a given number of seconds, beside a frozen trunk (stage 8).

Half of every batch is corpus, half is text that the trunk wrote before the run. The clock drives
learning rate and rounding; `--deadline` counts from the start of the process, so that compilation
shortens the training and never the evaluation. Curve, report and the merged checkpoint go to the
output folder.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from training.data import Batches
from training.drafter import Drafter, DraftShape, Rows, draw_anchors, initialise
from training.evaluate_drafter import evaluate, prompts_of, write_temperatures
from training.export import check_merge, export_drafter, load_checkpoint
from training.generate import write_on
from training.model import Mode, Trunk
from training.optimiser import Optimiser, Rates
from training.pack import Ids, load_tokens, without
from training.shape import Shape
from training.train import balance_experts, narrow

MODE = Mode(True)
BEGIN = time.perf_counter()


@dataclass(frozen=True)
class DraftRecipe:
    """Everything a run depends on besides data and the trunk; shares are of the run's seconds."""

    seconds: float = 480.0
    batch: int = 32
    length: int = 1024
    anchors: int = 16
    seed: int = 20261130
    warmup_steps: int = 100
    decay_from: float = 0.45
    quantise_from: float = 0.65
    balance: float = 1e-3
    position_decay: float = 0.85
    entropy_weight: float = 0.5
    entropy_weight_end: float = 0.5
    variation_weight: float = 1.0
    sources: tuple[int, ...] = (1, 3, 4)
    pool_rounds: int = 4
    pool_rows: int = 2048
    pool_greedy: float = 1 / 3
    pool_sampled: float = 1 / 3
    corpus_rows: int = 16
    rates: Rates = field(default_factory=lambda: Rates(muon=3e-3))


def entropy_weight(recipe: DraftRecipe, share: float) -> float:
    """The weight of cross entropy at a share of the run; it moves while the rates fall."""
    late = max(0.0, (share - recipe.decay_from) / (1.0 - recipe.decay_from))
    return recipe.entropy_weight + late * (recipe.entropy_weight_end - recipe.entropy_weight)


def draft_loss(
    rows: Rows, counted: Tensor, recipe: DraftRecipe, share: float
) -> tuple[Tensor, Tensor]:
    """The drafter's loss and the confidence head's, at a share of the run.

    Total variation is what decides acceptance, but it is flat where the two distributions do not
    meet; cross entropy pulls them together there, and may fade once they do. Later positions weigh
    less because they are reached less often. The confidence head sees rows as often as serving
    reaches them.
    """
    decay = recipe.position_decay ** torch.arange(counted.shape[-1], device=counted.device)
    weight = counted.float() * decay
    each = entropy_weight(recipe, share) * rows.loss + recipe.variation_weight * (1 - rows.accept)
    draft = (each * weight).sum() / weight.sum()
    accept = rows.accept.detach().clamp(0, 1)
    reach = F.pad(accept[..., :-1], (1, 0), value=1.0).cumprod(-1) * counted
    entropy = F.binary_cross_entropy_with_logits(rows.confidence, accept, reduction="none")
    return draft, (entropy * reach).sum() / reach.sum()


def summary(rows: Rows, counted: Tensor) -> Tensor:
    """Per position: mean acceptance and argmax agreement; last the tokens a verification."""
    whole = counted.all(-1)
    accept, match = rows.accept[whole].detach(), rows.match[whole].float()
    tokens = torch.stack([1 + x.cumprod(-1).sum(-1).mean() for x in (accept, match)])
    return torch.cat((accept.mean(0), match.mean(0), tokens))


class Pool:
    """Rows that the trunk wrote, drawn at random."""

    def __init__(self, trunk: Trunk, tokens: Ids, recipe: DraftRecipe) -> None:
        random = np.random.default_rng(recipe.seed)
        starts = np.flatnonzero(tokens[: -recipe.length] == 0)
        parts = []
        for index in range(recipe.pool_rounds):
            prompt = (256, 64, 256, 384)[index % 4]
            begin = random.choice(starts, recipe.pool_rows)
            ids = torch.from_numpy(tokens[begin[:, None] + np.arange(prompt)].astype(np.int64))
            heat = torch.linspace(0, 1, recipe.pool_rows)
            heat[: round(recipe.pool_rows * recipe.pool_greedy)] = 0.0
            heat[recipe.pool_rows - round(recipe.pool_rows * recipe.pool_sampled) :] = 1.0
            parts.append(write_on(trunk, ids, recipe.length, heat, recipe.seed + index))
        ids = torch.cat(parts)
        self.rows = F.pad(ids, (0, 1), value=0).to(torch.int16)

    def take(self, count: int) -> Tensor:
        """`count` rows; the last token of a row starts another document and so never counts."""
        index = torch.randint(len(self.rows), (count,), device=self.rows.device)
        return self.rows[index].long()


class DraftRun:
    """One training run: state, clock and records."""

    def __init__(
        self,
        recipe: DraftRecipe,
        trunk: Trunk,
        drafter: Drafter,
        corpus: Batches,
        pool: Pool | None,
        out: Path,
    ) -> None:
        self.recipe, self.trunk, self.drafter = recipe, trunk, drafter
        self.corpus, self.pool, self.out = corpus, pool, out
        self.optimiser = Optimiser(drafter, recipe.rates, drafter.shape.o_groups)
        self.step, self.records = 0, list[dict[str, object]]()

    def batch(self) -> Tensor:
        """Corpus rows, then rows of the pool."""
        ids = self.corpus.take()
        missing = self.recipe.batch - len(ids)
        return torch.cat((ids, self.pool.take(missing))) if self.pool and missing else ids

    def forward(self, ids: Tensor) -> tuple[Rows, Tensor, list[Tensor]]:
        """Scores of fresh anchors of a batch."""
        with torch.no_grad():
            features, last = self.trunk.features(ids[:, :-1], MODE, self.drafter.draft.targets)
        window = self.trunk.shape.sliding_window
        anchors = draw_anchors(len(ids), ids.shape[1] - 1, window, self.recipe.anchors, ids.device)
        result: tuple[Rows, Tensor, list[Tensor]] = self.drafter(
            ids, anchors, features, last, self.trunk, MODE
        )
        return result

    def one_step(self, share: float) -> tuple[Tensor, Rows, Tensor]:
        """Forward, backward, update."""
        recipe = self.recipe
        rows, counted, loads = self.forward(self.batch())
        draft, confidence = draft_loss(rows, counted, recipe, share)
        (draft + confidence).backward()
        warm = min(1.0, (self.step + 1) / recipe.warmup_steps)
        if share >= recipe.decay_from:
            warm *= max(0.01, (1.0 - share) / (1.0 - recipe.decay_from))
        self.optimiser.step(warm, share >= recipe.quantise_from)
        balance_experts(self.drafter.mtp, loads, recipe.balance)
        self.step += 1
        return torch.stack((draft, confidence)).detach(), rows, counted

    def train(self, start: float, seconds: float, every: int) -> None:
        """Steps until the clock has run out."""
        recent: list[Tensor] = []
        while (share := (time.perf_counter() - start) / seconds) < 1.0:
            losses, rows, counted = self.one_step(share)
            recent.append(losses)
            if self.step % every == 0:
                self.record(start, share, recent, rows, counted)
                recent = []

    def record(
        self, start: float, share: float, recent: list[Tensor], rows: Rows, counted: Tensor
    ) -> None:
        """One line of the curve: corpus rows and rows of the pool apart."""
        line: dict[str, object] = {"step": self.step, "share": round(share, 4)}
        line["seconds"] = round(time.perf_counter() - start, 2)
        draft, confidence = torch.stack(recent).mean(0).tolist()
        line.update(loss=round(draft, 5), confidence=round(confidence, 5))
        cut = len(counted) if not self.pool else self.recipe.corpus_rows
        for name, part in (("corpus", slice(0, cut)), ("written", slice(cut, None))):
            if len(counted[part]):
                picked = Rows(*(getattr(rows, n)[part] for n in Rows.__dataclass_fields__))
                values = summary(picked, counted[part]).tolist()
                n = self.drafter.draft.block
                line[name] = {
                    "accept": [round(v, 4) for v in values[:n]],
                    "match": [round(v, 4) for v in values[n : 2 * n]],
                    "tokens": [round(v, 3) for v in values[2 * n :]],
                }
        self.records.append(line)
        print(json.dumps(line), flush=True)
        (self.out / "drafter_curve.json").write_text(json.dumps(self.records))

    def masters(self) -> dict[str, Tensor]:
        """Unrounded weights and buffers by name, on the CPU."""
        state = self.optimiser.state()
        out = {name: state[id(p)] for name, p in self.drafter.named_parameters()}
        out.update(dict(self.drafter.named_buffers()))
        return {name: v.detach().clone().cpu().contiguous() for name, v in out.items()}


def prepare(args: argparse.Namespace, device: torch.device) -> tuple[Trunk, Drafter]:
    """The frozen trunk and a drafter that starts from its layers."""
    shape = Shape.read(args.model / "config.json")
    trunk = Trunk(shape)
    trunk.load_state_dict(load_checkpoint(args.model))
    noise = json.loads((args.model / "config.json").read_text())["vocab_size"] - 1
    drafter = Drafter(shape, DraftShape(rank=args.rank, noise=noise))
    initialise(drafter, trunk, DraftRecipe().sources, DraftRecipe().seed)
    if args.resume:
        start = widen(load_checkpoint(args.resume, drafter=True), drafter.state_dict())
        drafter.load_state_dict(start)
    for model in (trunk, drafter):
        narrow(model, device)
        model.to(device)
    trunk.requires_grad_(False)
    if device.type == "cuda":
        trunk.compile_parts()
        drafter.compile_parts()
    return trunk, drafter


def widen(stored: dict[str, Tensor], fresh: dict[str, Tensor]) -> dict[str, Tensor]:
    """A stored drafter's weights for a Markov rank that may be greater than its own.

    New columns come from `fresh`; those of the second table and of the confidence head are nothing
    there, so the wider drafter begins with the very outputs of the stored one.
    """
    out = {}
    for name, value in stored.items():
        wide = fresh[name].clone()
        if value.shape != wide.shape and (value.dim() != 2 or value.shape[1] > wide.shape[1]):
            raise ValueError(f"{name}: {tuple(value.shape)} does not fit {tuple(wide.shape)}")
        if value.dim() == 2:
            wide[:, : value.shape[1]] = value
        else:
            wide.copy_(value)
        out[name] = wide
    return out


def note(text: str) -> None:
    """A line of the log with the seconds since the start."""
    print(f"{time.perf_counter() - BEGIN:7.1f} s  {text}", flush=True)


def warm_up(trunk: Trunk, drafter: Drafter, recipe: DraftRecipe, part: str) -> None:
    """Compiles the trunk's forward, the drafter's forward and backward, or both."""
    device = trunk.hc_head_base.device
    ids = torch.randint(1, trunk.shape.vocab_size, (recipe.batch, recipe.length + 1)).to(device)
    size = trunk.shape.sliding_window
    if part != "drafter":
        with torch.no_grad():
            features, last = trunk.features(ids[:, :-1], MODE, drafter.draft.targets)
        note("trunk compiled")
    if part == "trunk":
        return
    if part == "drafter":
        width, kind = trunk.shape.hidden_size, trunk.head.weight.dtype
        last = torch.randn(
            recipe.batch, recipe.length, trunk.shape.hc_mult, width, device=device, dtype=kind
        )
        features = torch.randn(
            recipe.batch, recipe.length, width * len(drafter.draft.targets), device=device,
            dtype=kind,
        )  # fmt: skip
    anchors = draw_anchors(recipe.batch, recipe.length, size, recipe.anchors, device)
    rows, counted, _ = drafter(ids, anchors, features, last, trunk, MODE)
    sum(draft_loss(rows, counted, recipe, 0.0)).backward()  # type: ignore[union-attr]
    for parameter in drafter.parameters():
        parameter.grad = None
    note("drafter compiled")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="the trunk's folder")
    parser.add_argument("--data", type=Path, required=True, help="the packed shards of stage 3")
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--prose", type=Path, help="held_out_prose.jsonl of stage 1")
    parser.add_argument("--leave-out", type=Path, help="prose.json of stage 3: train on code alone")
    parser.add_argument("--resume", type=Path, help="folder whose drafter is trained on")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--deadline", type=float, default=1e9, help="end of training since start")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--anchors", type=int, default=16, help="of each 128 positions")
    parser.add_argument("--pool-rounds", type=int, default=4, help="0: corpus alone")
    parser.add_argument("--pool-rows", type=int, default=2048)
    parser.add_argument("--pool-greedy", type=float, default=1 / 3, help="share at temperature 0")
    parser.add_argument("--pool-sampled", type=float, default=1 / 3, help="share at temperature 1")
    parser.add_argument("--corpus-rows", type=int, default=16, help="of a batch")
    parser.add_argument("--entropy-end", type=float, default=0.5, help="cross entropy at the end")
    parser.add_argument("--muon", type=float, default=3e-3)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--out-tokens", type=int, default=256)
    parser.add_argument(
        "--compile-only", choices=("drafter", "both"), help="fill the compiler's cache"
    )
    return parser.parse_args()


def main() -> None:
    args = parse()
    recipe = DraftRecipe(
        seconds=args.seconds, batch=args.batch, length=args.length, anchors=args.anchors,
        pool_rounds=args.pool_rounds, pool_rows=args.pool_rows, pool_greedy=args.pool_greedy,
        pool_sampled=args.pool_sampled, corpus_rows=args.corpus_rows,
        entropy_weight_end=args.entropy_end, rates=Rates(muon=args.muon),
    )  # fmt: skip
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(recipe.seed)
    if args.compile_only:
        warm_up(*prepare(args, device), recipe, args.compile_only)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    helper = None
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        tokenizer_file = args.model / "tokenizer.json"
        loading = pool.submit(load_tokens, args.data, tokenizer_file, args.workers)
        if device.type == "cuda":
            command = [sys.executable, "-m", "training.train_drafter", *sys.argv[1:]]
            helper = subprocess.Popen([*command, "--compile-only", "drafter"])
        trunk, drafter = prepare(args, device)
        if helper:
            warm_up(trunk, drafter, recipe, "trunk")
        tokens = loading.result()
    if args.leave_out:
        tokens = without(tokens, args.leave_out)
    note(f"{len(tokens)} tokens read")
    written = Pool(trunk, tokens, recipe) if recipe.pool_rounds else None
    if written:
        note(f"{written.rows.numel()} tokens written by the trunk")
    if helper:
        helper.wait()
        warm_up(trunk, drafter, recipe, "both")
    rows = recipe.corpus_rows if written else recipe.batch
    corpus = Batches(tokens, rows, recipe.length, recipe.seed, device)
    run = DraftRun(recipe, trunk, drafter, corpus, written, args.out)
    start = time.perf_counter()
    seconds = min(recipe.seconds, args.deadline - (start - BEGIN))
    note(f"training for {seconds:.0f} s")
    run.train(start, seconds, args.every)
    finish(run, args, time.perf_counter() - start, len(tokens))


def finish(run: DraftRun, args: argparse.Namespace, seconds: float, tokens: int) -> None:
    """Exports first, then measures what was exported and writes the report."""
    run.optimiser.publish(quantise=True)
    masters = run.masters()
    save_file(masters, args.out / "drafter_masters.safetensors")
    config = run.drafter.draft.config(json.loads((args.model / "config.json").read_text()))
    export_drafter(masters, config, args.model, args.out / "checkpoint")
    note("exported")
    run.drafter.load_state_dict(load_checkpoint(args.out / "checkpoint", drafter=True))
    report: dict[str, object] = {"recipe": asdict(run.recipe), "tokens": tokens}
    report.update(steps=run.step, seconds=seconds, milliseconds_a_step=1000 * seconds / run.step)
    if torch.cuda.is_available():
        report["peak_bytes"] = torch.cuda.max_memory_allocated()
    report["bytes"] = check_merge(args.model, args.out / "checkpoint")
    plain_calls(run)
    for name, file in (("code", args.held_out), ("prose", args.prose)):
        if file:
            prompts = prompts_of(file, args.model / "tokenizer.json", args.files, args.prompt)
            report[name] = evaluate(run.trunk, run.drafter, prompts, args.out_tokens)
            (args.out / "drafter_report.json").write_text(json.dumps(report, indent=1))
            print(json.dumps({name: report[name]}), flush=True)
            note(f"measured {name}")
    code = cast("dict[str, object]", report["code"])
    write_temperatures(
        args.out / "checkpoint", cast("list[float]", code["confidence_temperatures"])
    )


def plain_calls(run: DraftRun) -> None:
    """Evaluation has other shapes than training: not worth compiling."""
    from training.drafter import call_stage, row_scores
    from training.model import call_layer

    run.trunk.call_layer = call_layer
    run.drafter.call_stage, run.drafter.call_scores = call_stage, row_scores


if __name__ == "__main__":
    main()
