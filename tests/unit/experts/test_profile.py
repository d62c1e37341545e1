"""Measuring: what is counted, what runs beside what, and how much memory it takes."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deskside.cli import main
from deskside.config.engine import EngineOptions
from deskside.config.environment import profile_folder
from deskside.device import HostDevice
from deskside.errors import CapacityError
from deskside.experts import profile as measuring
from deskside.experts.profile import Bench, bank_experts, measured
from deskside.kernels import native
from deskside.machine.topology import read_topology
from deskside.ops.opset import OpSet
from deskside.planning.profile import load
from deskside.runtime.profiles import fingerprint, spec_of
from tests.flash import flash
from tests.miniature import MINIATURE

EXPERT = 3 * 128 * 128 * 17 // 32
GIB = 1024**3


@pytest.fixture
def bench() -> Bench:
    ops = OpSet().replaced(native.bodies())
    return Bench.build(MINIATURE, ops, HostDevice(), experts=12)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Replace the clock by one that stands still until it is moved."""
    now = [0.0]
    monkeypatch.setattr("deskside.experts.profile.time.perf_counter", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def test_a_rate_is_the_median_of_bytes_over_time(clock: Callable[[float], None]) -> None:
    seconds = itertools.chain([100.0, 2.0, 0.5, 4.0], itertools.repeat(9.0))

    def work() -> int:
        clock(next(seconds))
        return 8

    assert measuring._rate(work, 6.0) == 4.0  # 8 / 2 between 8 / 0.5 and 8 / 4; warm-up left out


def test_one_piece_is_measured_however_long_it_takes(clock: Callable[[float], None]) -> None:
    def work() -> int:
        clock(50.0)
        return 100

    assert measuring._rate(work, 1.0) == 2.0


def test_both_paths_run_at_the_same_time() -> None:
    """Each waits for the other's progress: one after the other would never end."""
    turns = [threading.Semaphore(0), threading.Semaphore(0)]

    def ours() -> int:
        turns[1].release()
        assert turns[0].acquire(timeout=30)
        return 10

    def theirs() -> int:
        turns[0].release()
        turns[1].acquire(timeout=0.05)  # the last piece of all has nobody to wait for
        return 1

    found = measuring._together(ours, theirs, HostDevice(), 0.02)
    assert min(found) > 0


def test_a_fault_beside_is_told() -> None:
    calls = itertools.count()

    def theirs() -> int:
        if next(calls):
            raise OSError("no copy")
        return 1

    with pytest.raises(OSError, match="no copy"):
        measuring._together(lambda: 1, theirs, HostDevice(), 0.01)


def test_every_expert_once_before_one_comes_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    run = bench.rows(bench.banks)
    monkeypatch.setattr(
        Bench, "row", lambda _self, _banks, ids: seen.append(ids.flatten().tolist()) or 1
    )
    for _ in range(12):
        run()
    assert all(len(ids) == 2 for ids in seen)
    assert sorted(itertools.chain(*seen[:6])) == list(range(12))
    assert sorted(itertools.chain(*seen[6:])) == list(range(12))


def test_all_is_measured_on_the_model_s_own_shape(bench: Bench) -> None:
    used: list[int] = []
    sizes: list[int] = []

    def read(tensor: Tensor) -> None:
        sizes.append(tensor.nbytes)

    found = measured(bench, read, [1, 2, 3], used.append, 0.001)
    assert used == [1, 2, 3]
    assert sum(sizes[:6]) == found.expert_bytes == EXPERT
    assert found.bank_bytes == 12 * EXPERT
    assert [one.threads for one in found.reads] == used
    assert 0 < found.fetch_fraction < 1
    for ours, theirs in zip(bench.slots.banks, bench.banks, strict=True):
        assert all(any(one.equal(other) for other in theirs.codes) for one in ours.codes)


def test_the_bank_is_the_model_s_or_what_memory_holds() -> None:
    assert bank_experts(MINIATURE, EXPERT, GIB) == 4 * 8
    big = 3 * 4096 * 2048 * 17 // 32
    assert bank_experts(flash(), big, 400 * GIB) == GIB // big
    assert bank_experts(flash(), big, 2 * GIB) == GIB // 2 // big
    with pytest.raises(CapacityError, match=r"measuring needs .* have 300.00 MiB; free"):
        bank_experts(flash(), big, 300 * 1024**2)


@pytest.fixture
def _torch_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.native
@pytest.mark.usefixtures("_native_defaults", "_torch_threads")
def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured, kept, used by the next plan, and refused with other threads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one = ["--threads", "1"]
    hybrid = ["plan", "--backend", "hybrid", "--json"]
    assert main([*hybrid, *one]) == 2
    assert "no profile of this model" in capsys.readouterr().err
    asked = ["--backend", "hybrid", "--fetch-fraction", "0.5", "--expert-slots", "9"]  # no matter
    assert main(["profile", "--seconds", "0.01", "--json", *one, *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    now = fingerprint(EngineOptions(threads=1), read_topology())
    kept = load(profile_folder(), spec_of("deskside-mini"), now)
    assert kept.rates is not None
    assert json.loads(kept.rates.model_dump_json()) == told["rates"]
    assert Path(told["path"]).is_relative_to(tmp_path)
    assert main([*hybrid, *one]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["routed"]["fetch_fraction"] == told["fetch_fraction"]
    assert plan["routed"]["predicted_tokens_per_s"] == told["predicted_tokens_per_s"]["hybrid"]
    assert main([*hybrid, "--threads", "2"]) == 2
    refused = capsys.readouterr().err
    assert "was made with threads 1, now 2: run `deskside profile`" in refused
    assert refused.count("\n") == 1
