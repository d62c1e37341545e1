"""Trains the small model on one GPU for a given number of seconds (stage 4).

The clock drives everything: learning rate, the indexer's training, attention to its choice and
rounding of the weights all start at fixed shares of the time, so a run always ends finished.
Progress, snapshots and the packed result go to the output folder while it runs.
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
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from training.data import Batches, Splits, Windows, held_out_windows
from training.evaluate import bits_per_byte
from training.export import export_checkpoint, load_checkpoint
from training.model import Mode, Trunk, initialise
from training.optimiser import Optimiser, Rates
from training.pack import load_tokens
from training.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from training.model import Layer


@dataclass(frozen=True)
class Recipe:
    """Everything a run depends on besides data and shape; shares are of the run's seconds."""

    seconds: float = 1060.0
    batch: int = 16
    length: int = 4096
    seed: int = 20261130
    warmup_steps: int = 150
    decay_from: float = 0.50
    index_from: float = 0.60
    sparse_from: float = 0.68
    quantise_from: float = 0.72
    balance: float = 1e-3
    split: float = 0.1
    rates: Rates = field(default_factory=Rates)


def rate_factor(recipe: Recipe, step: int, share: float) -> float:
    """Linear warm-up by steps, a plateau, then a line to (almost) zero at the end."""
    warm = min(1.0, (step + 1) / recipe.warmup_steps)
    if share < recipe.decay_from:
        return warm
    return warm * max(0.01, (1.0 - share) / (1.0 - recipe.decay_from))


def mode_at(recipe: Recipe, share: float) -> Mode:
    """What the forward simulates at this point of the run."""
    return Mode(True, share >= recipe.index_from, share >= recipe.sparse_from)


def prepare(shape: Shape, seed: int, device: torch.device) -> Trunk:
    """A fresh model in the types the training computes with."""
    model = Trunk(shape)
    initialise(model, seed)
    narrow(model, device)
    return model.to(device)


def narrow(model: torch.nn.Module, device: torch.device) -> None:
    """On a GPU the large matrices are held, and multiplied, in BF16."""
    small = ("_fn", "ape", "gate.weight")
    for name, parameter in model.named_parameters():
        wide = parameter.ndim < 2 or name.startswith("embed")
        wide = wide or (name.endswith(small) and not name.endswith("wgate.weight"))
        if not wide and device.type == "cuda":
            parameter.data = parameter.data.to(torch.bfloat16)


def balance_experts(layers: Iterable[Layer], loads: list[Tensor], amount: float) -> None:
    """Moves every scored router's bias against the last load."""
    with torch.no_grad():
        for layer, load in zip(layers, loads, strict=True):
            if not layer.ffn.gate.hashed:
                bias = layer.ffn.gate.bias
                bias.add_(torch.sign(load.mean() - load), alpha=amount)
                bias.sub_(bias.mean())


class Run:
    """One training run: state, clock and records."""

    def __init__(self, recipe: Recipe, model: Trunk, batches: Batches, out: Path) -> None:
        self.recipe, self.model, self.batches, self.out = recipe, model, batches, out
        self.optimiser = Optimiser(model, recipe.rates, model.shape.o_groups)
        self.step, self.records = 0, list[dict[str, float]]()

    def one_step(self, share: float) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Forward, backward, update."""
        mode = mode_at(self.recipe, share)
        loss, index, loads = self.model.losses(self.batches.take(), mode)
        mean = loss.mean()
        (mean + index).backward()
        quantise = share >= self.recipe.quantise_from
        self.optimiser.step(rate_factor(self.recipe, self.step, share), quantise)
        balance_experts(self.model.layers, loads, self.recipe.balance)
        self.step += 1
        return mean.detach(), index.detach(), loads

    def train(self, start: float, every: int, at: list[tuple[float, Callable[[], None]]]) -> None:
        """Steps until the clock has run out; calls what is due at given shares on the way."""
        recent: list[tuple[Tensor, Tensor]] = []
        due = sorted(at, key=lambda pair: pair[0])
        while (share := (time.perf_counter() - start) / self.recipe.seconds) < 1.0:
            mean, index, loads = self.one_step(share)
            recent.append((mean, index))
            if self.step % every == 0:
                self.record(start, share, recent, loads)
                recent = []
            while due and share >= due[0][0]:
                due.pop(0)[1]()

    def record(
        self, start: float, share: float, recent: list[tuple[Tensor, Tensor]], loads: list[Tensor]
    ) -> None:
        """One line of the loss curve."""
        loss = torch.stack([pair[0] for pair in recent]).mean().item()
        index = torch.stack([pair[1] for pair in recent]).mean().item()
        worst = max((load.max() / load.mean()).item() for load in loads)
        line = {
            "step": self.step,
            "seconds": round(time.perf_counter() - start, 2),
            "share": round(share, 4),
            "loss": round(loss, 5),
            "index": round(index, 5),
            "worst_load": round(worst, 3),
            "epoch": self.batches.epoch,
        }
        self.records.append(line)
        print(json.dumps(line), flush=True)
        (self.out / "curve.json").write_text(json.dumps(self.records))

    def masters(self) -> dict[str, Tensor]:
        """Unrounded weights and buffers by name, on the CPU."""
        state = self.optimiser.state()
        out = {name: state[id(p)] for name, p in self.model.named_parameters()}
        out.update(dict(self.model.named_buffers()))
        return {name: value.detach().clone().cpu() for name, value in out.items()}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path(__file__).parent / "config.json")
    parser.add_argument("--data", type=Path, required=True, help="the packed shards of stage 3")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of stage 2")
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="checkpoint folder to start from")
    parser.add_argument("--seconds", type=float, default=1060.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--muon", type=float, default=4e-3)
    parser.add_argument("--split", type=float, default=0.1, help="share of newline tokens cut")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--snapshots", type=str, default="", help="shares at which to export")
    parser.add_argument("--compile-only", action="store_true", help="fill the compiler's cache")
    return parser.parse_args()


EARLY = (Mode(True),)
LATE = (Mode(True, True), Mode(True, True, True))


def main() -> None:
    args = parse()
    shape = Shape.read(args.config)
    rates = Rates(muon=args.muon)
    recipe = Recipe(
        seconds=args.seconds, batch=args.batch, length=args.length, split=args.split, rates=rates
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    if args.compile_only:
        model = prepare(shape, recipe.seed, device)
        model.compile_parts()
        warm_up(model, LATE, args.batch, args.length)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer_file = args.tokenizer / "tokenizer.json"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        loading = pool.submit(load_tokens, args.data, tokenizer_file, args.workers)
        model = prepare(shape, recipe.seed, device)
        if args.resume:
            model.load_state_dict(load_checkpoint(args.resume))
        if device.type == "cuda":
            model.compile_parts()
            warm_up(model, EARLY, args.batch, args.length)
            subprocess.Popen(
                [sys.executable, "-m", "training.train", *sys.argv[1:], "--compile-only"]
            )
        tokens = loading.result()
    windows = held_out_windows(args.held_out, tokenizer_file, args.length)
    np.save(args.out / "tokens.npy", tokens)
    splits = Splits(tokenizer_file, recipe.split) if recipe.split else None
    batches = Batches(tokens, args.batch, args.length, recipe.seed, device, splits)
    run = Run(recipe, model, batches, args.out)
    start = time.perf_counter()
    report: dict[str, object] = {"recipe": asdict(recipe), "tokens": len(tokens)}

    def snapshot() -> None:
        export_checkpoint(run.masters(), args.config, args.tokenizer, args.out / "snapshot")
        (args.out / "snapshot.done").write_text(f"{run.step}\n")

    run.train(start, args.every, [(float(x), snapshot) for x in args.snapshots.split(",") if x])
    masters = {name: value.contiguous() for name, value in run.masters().items()}
    save_file(masters, args.out / "masters.safetensors")
    finish(run, windows, report, time.perf_counter() - start)
    export_checkpoint(masters, args.config, args.tokenizer, args.out / "checkpoint")
    (args.out / "report.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report), flush=True)


def warm_up(model: Trunk, modes: tuple[Mode, ...], batch: int, length: int) -> None:
    """Compiles variants of the forward and backward on random ids; no step is taken."""
    ids = torch.randint(0, model.shape.vocab_size, (batch, length + 1))
    for mode in modes:
        begin = time.perf_counter()
        loss, index, _ = model.losses(ids.to(model.hc_head_base.device), mode)
        (loss.mean() + index).backward()
        for parameter in model.parameters():
            parameter.grad = None
        print(f"{mode}: {loss.mean().item():.3f}, {time.perf_counter() - begin:.1f} s", flush=True)


def finish(run: Run, windows: Windows, report: dict[str, object], seconds: float) -> None:
    """Measures the result, unrounded and as stored, and sums up the run."""
    mode = Mode(True, True, True)
    for name, quantise in (("unquantised", False), ("quantised", True)):
        run.optimiser.publish(quantise)
        report[name] = bits_per_byte(run.model, windows, run.recipe.batch, mode)
    count = run.step * run.recipe.batch * run.recipe.length
    report.update(steps=run.step, tokens_seen=count, seconds=seconds, rate=count / seconds)


if __name__ == "__main__":
    main()
