"""Trunk, then drafter, on one GPU from one command that may run detached (stages 4, 8 and 9).

While the trunk trains, a second process compiles the drafter's kernels from an early snapshot, so
that the drafter starts at once. The output folder always holds what has been finished: poll
`log`, `curve.json`, `drafter_curve.json` and `drafter_report.json`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer


def stage(module: str, more: str, **options: object) -> list[str]:
    """The command of one stage."""
    command = [sys.executable, "-m", f"training.{module}"]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return command + shlex.split(more)


def own_config(base: Path, tokenizer: Path, target: Path) -> Path:
    """The configuration with the vocabulary that the tokenizer has."""
    values = json.loads(base.read_text())
    tokenizer_file = tokenizer / "tokenizer.json"
    values["vocab_size"] = Tokenizer.from_file(str(tokenizer_file)).get_vocab_size()
    target.write_text(json.dumps(values, indent=2) + "\n")
    return target


def compile_meanwhile(trunk: subprocess.Popen[bytes], out: Path, command: list[str]) -> None:
    """Waits for the trunk; compiles for the drafter as soon as a snapshot is there."""
    helper: subprocess.Popen[bytes] | None = None
    while trunk.poll() is None:
        if helper is None and (out / "snapshot.done").exists():
            helper = subprocess.Popen(["nice", *command, "--compile-only", "both"])
        time.sleep(1)
    if trunk.returncode:
        raise SystemExit(trunk.returncode)
    if helper:
        helper.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path(__file__).parent / "config.json")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--prose", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trunk-seconds", type=float, default=880.0)
    parser.add_argument("--drafter-seconds", type=float, default=480.0)
    parser.add_argument("--deadline", type=float, default=1560.0, help="of all training")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--trunk-options", default="", help="more for the trunk, one string")
    parser.add_argument("--drafter-options", default="", help="more for the drafter, one string")
    args = parser.parse_args()
    begin = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    config = own_config(args.config, args.tokenizer, args.out / "config.json")
    common = {"held_out": args.held_out, "out": args.out, "workers": args.workers}
    trunk = subprocess.Popen(
        stage("train", args.trunk_options, config=config, data=args.data, tokenizer=args.tokenizer,
              seconds=args.trunk_seconds, snapshots=0.55, **common)
    )  # fmt: skip
    drafter: dict[str, object] = {
        "data": args.out,
        "prose": args.prose,
        "rank": args.rank,
        "leave_out": args.data / "prose.json",
        **common,
    }
    compile_meanwhile(
        trunk,
        args.out,
        stage("train_drafter", args.drafter_options, model=args.out / "snapshot", **drafter),
    )
    subprocess.run(["mv", str(args.out / "checkpoint"), str(args.out / "trunk")], check=True)
    left = args.deadline - (time.perf_counter() - begin)
    drafter.update(model=args.out / "trunk", seconds=args.drafter_seconds, deadline=left)
    subprocess.run(stage("train_drafter", args.drafter_options, **drafter), check=True)


if __name__ == "__main__":
    main()
