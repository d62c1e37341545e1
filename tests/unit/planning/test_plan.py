"""Plans of the real model and of small ones, on machines that are records."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deskside.config.engine import EngineOptions
from deskside.errors import CapacityError, CheckpointError, InputError
from deskside.layout import kv
from deskside.layout.kv import KvFormat
from deskside.machine.machine import Machine
from deskside.machine.memory import Memory
from deskside.machine.topology import Node, Topology
from deskside.planning.amounts import amount, grouped
from deskside.planning.capacity import largest
from deskside.planning.options import PlanOptions
from deskside.planning.plan import Plan, make_plan, plan_folder
from deskside.planning.workspace import PROCESS_RESERVE, workspace_bytes
from tests.flash import flash, flash_config

GIB = 1024**3


def machine(available: int) -> Machine:
    cores = tuple((cpu,) for cpu in range(8))
    topology = Topology("Some CPU", tuple(range(8)), cores, (Node(0, (0,), 0, 0),), frozenset())
    return Machine(Memory(512 * GIB, available), topology)


def plan(available: int = 400 * GIB, options: PlanOptions | None = None, **config: Any) -> Plan:
    return make_plan(flash(**config), machine(available), options or PlanOptions())


SMALL: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "compress_ratios": [0, 4, 128, 4],
    "num_attention_heads": 4,
    "head_dim": 128,
    "q_lora_rank": 128,
    "o_lora_rank": 64,
    "o_groups": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "num_hash_layers": 1,
    "vocab_size": 512,
    "max_position_embeddings": 16_384,
    "drafter": False,
}


@pytest.mark.parametrize(
    ("ranks", "trunk", "drafter", "whole"),
    [
        (1, 156_015_698_140, 10_862_838_300, 166_878_536_440),
        (2, 78_666_270_300, 5_474_063_260, 84_140_333_560),
        (4, 39_991_556_380, 2_779_675_740, 42_771_232_120),
    ],
)
def test_the_real_model_to_the_byte(ranks: int, trunk: int, drafter: int, whole: int) -> None:
    found = plan(options=PlanOptions(tensor_parallel=ranks)).to_json()
    sums = {name: values["rank"] for name, values in found["totals"].items()}
    assert sums == {"trunk": trunk, "mtp": drafter, "all": whole}
    assert found["totals"]["all"]["stored"] == 166_878_536_440
    assert found["totals"]["all"]["held"] == trunk
    rows = {part["name"]: part for part in found["components"]}
    assert len(rows) == 17
    assert rows["trunk routed experts"]["rank"] == 147_169_738_752 // ranks
    assert rows["trunk routed experts"]["how"] == "split"
    assert rows["hyper-connections"]["rank"] == 135_537_756
    assert rows["hyper-connections"]["how"] == "replicated"
    assert rows["mtp markov w1+w2"]["held"] == 0


def test_the_drafter_is_held_when_it_is_used() -> None:
    assert plan(options=PlanOptions(drafter=True)).weights == 166_878_536_440
    assert plan().weights == 156_015_698_140
    assert plan(drafter=False).stored == 156_015_698_140


def test_the_parts_add_up() -> None:
    found = plan()
    assert found.fits
    assert found.knob is None
    assert found.need == found.weights + found.capacity.nbytes + found.workspace
    assert found.capacity.nbytes == kv.state_bytes(flash(), KvFormat.FP8, found.kv_pages, 8)
    assert found.capacity.pool_bytes == (found.kv_pages + 1) * 449_824
    assert found.kv_tokens == 65_536  # auto's own ceiling
    assert found.to_json()["kv"]["token_bytes"] == 3514.25
    found.require_fit()
    two = plan(options=PlanOptions(tensor_parallel=2))
    assert two.need == 2 * (two.weights + two.capacity.nbytes + two.workspace)


def test_auto_is_the_least_of_three() -> None:
    assert plan(**SMALL).kv_tokens == 16_384  # the model's limit
    assert plan(**SMALL | {"max_position_embeddings": 10**6}).kv_tokens == 65_536
    least = plan(options=PlanOptions(kv_tokens=1), **SMALL)
    found = plan(least.need + 64 * 1024**2, **SMALL)
    assert found.fits
    assert 128 < found.kv_tokens < 16_384

    def quarter(pages: int) -> bool:
        """A quarter of what is left beside everything else holds this many pages."""
        rival = plan(options=PlanOptions(kv_tokens=128 * pages), **SMALL)
        page = rival.capacity.page_bytes
        return pages * page <= (found.have - (rival.need - pages * page)) / 4

    assert quarter(found.kv_pages)
    assert not quarter(found.kv_pages + 1)
    assert plan(least.need - 1, **SMALL).kv_pages == 1  # at least one, and it does not fit


@pytest.mark.parametrize(("asked", "pages"), [(1, 1), (128, 1), (129, 2), (9_339, 73)])
def test_asked_tokens_are_whole_pages(asked: int, pages: int) -> None:
    found = plan(options=PlanOptions(kv_tokens=asked))
    assert (found.kv_pages, found.kv_tokens) == (pages, pages * 128)


def test_a_small_machine_is_told_need_have_and_knob() -> None:
    found = plan(16 * GIB)
    assert not found.fits
    with pytest.raises(CapacityError) as caught:
        found.require_fit()
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "have 16.00 GiB" in message
    assert "weights 145.30 GiB" in message
    assert "no option helps" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("spare", "options", "last"),
    [
        (20, PlanOptions(kv_tokens=1_000_000), "--kv-tokens"),
        (20, PlanOptions(kv_tokens=128, max_running=5000), "--max-running"),
        (0, PlanOptions(kv_tokens=200_000, max_running=1), "--step-tokens"),
    ],
)
def test_the_knob_makes_it_fit_and_is_the_largest(
    spare: int, options: PlanOptions, last: str
) -> None:
    fewest = PlanOptions(kv_tokens=128, max_running=1, prefill_chunk=16, step_tokens=16)
    have = plan(options=fewest, **SMALL).need + spare * 1024**2
    found = plan(have, options, **SMALL)
    assert not found.fits
    assert found.knob is not None
    words = found.knob.split()
    flags, numbers = words[1::2], [int(word) for word in words[2::2]]
    assert flags[-1] == last

    def obeyed(step: int) -> Plan:
        values = [*numbers[:-1], numbers[-1] + step]
        fields = {f[2:].replace("-", "_"): n for f, n in zip(flags, values, strict=True)}
        return plan(have, replace(options, **fields), **SMALL)

    assert obeyed(0).fits
    assert not obeyed(128 if last == "--kv-tokens" else 1).fits


def test_options_that_no_memory_can_obey() -> None:
    with pytest.raises(InputError, match=r"--tp 3: .* use one of 1, 2, 4, 8"):
        plan(options=PlanOptions(tensor_parallel=3))
    with pytest.raises(InputError, match=r"--tp 4 cannot share 2 output groups .* --tp 2 or"):
        plan(options=PlanOptions(tensor_parallel=4), **SMALL)
    with pytest.raises(InputError, match=r"layers\.0\..*2 ranks cannot cut"):
        plan(options=PlanOptions(tensor_parallel=2), **SMALL)  # FP8 blocks would be cut
    with pytest.raises(InputError, match="--kv-format float32"):
        plan(**SMALL | {"head_dim": 96})
    with pytest.raises(InputError, match="--max-running must be at least 1"):
        PlanOptions(max_running=0)
    with pytest.raises(InputError, match="--kv-tokens must be at least 1"):
        PlanOptions(kv_tokens=0)


def test_float32_rows_cost_what_they_say() -> None:
    found = plan(options=PlanOptions(kv_format=KvFormat.FLOAT32, kv_tokens=1280))
    assert found.capacity.page_bytes == 2 * 880_640
    assert found.capacity.slot_bytes > plan().capacity.slot_bytes


def test_the_workspace_grows_with_what_it_serves() -> None:
    spec = flash()
    base = workspace_bytes(spec, 256, 8, 4096)
    assert base > PROCESS_RESERVE
    assert workspace_bytes(spec, 2048, 8, 4096) > base
    assert workspace_bytes(spec, 256, 64, 4096) >= base
    assert workspace_bytes(spec, 256, 8, 65_536) > base
    window_only = flash(compress_ratios=[0] * 46)
    assert workspace_bytes(window_only, 16, 1, 128) > PROCESS_RESERVE
    assert largest(10, lambda n: n <= 7) == 7
    assert largest(10, lambda n: False) == 0
    assert largest(10, lambda n: True) == 10


def test_the_report_and_the_json_say_the_same() -> None:
    found = plan(16 * GIB)
    lines = found.report().splitlines()
    assert "43 layers (2 window, 21 CSA, 20 HCA), 256 experts top-6" in lines[0]
    assert "16.00 GiB of 512.00 GiB" in lines[1]
    table = {line[:34].strip(): line[46:].split("  ") for line in lines[4:24]}
    for part in found.to_json()["components"]:
        shown = [cell.strip() for cell in table[part["name"]] if cell.strip()]
        assert shown == [grouped(part[key]) for key in ("stored", "rank", "held")]
    assert any(line.startswith("= all") and "166 878 536 440" in line for line in lines)
    assert lines[-1].startswith("does not fit: no option helps")
    assert plan().report().splitlines()[-1] == "fits"
    assert json.loads(json.dumps(found.to_json())) == found.to_json()
    assert "2 ranks" in plan(options=PlanOptions(tensor_parallel=2)).report()
    assert max(map(len, lines)) < 140


def test_a_folder_with_only_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(flash_config()))
    options = EngineOptions(kv_tokens=1000, kv_format="float32", max_running=2)
    found = plan_folder(str(tmp_path), options)
    assert found.stored == 166_878_536_440
    assert found.kv_tokens == 1024
    assert found.max_running == 2
    assert found.options.kv_format is KvFormat.FLOAT32
    assert found.machine.memory.total > 0
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        plan_folder(str(tmp_path), EngineOptions())
    with pytest.raises(InputError, match="no such folder"):
        plan_folder(str(tmp_path / "nowhere"), EngineOptions())


def test_amounts() -> None:
    assert amount(0) == "0 B"
    assert amount(1023) == "1023 B"
    assert amount(1536) == "1.50 KiB"
    assert amount(166_878_536_440) == "155.42 GiB"
    assert amount(5 * 1024**5) == "5120.00 TiB"
    assert grouped(1_234_567) == "1 234 567"


def test_planning_loads_no_torch() -> None:
    code = (
        "import sys, deskside.planning.plan, deskside.checkpoint.index; "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_snapshots_count() -> None:
    without = plan()
    assert (without.capacity.snapshots, without.capacity.borders) == (0, 0)
    one = without.capacity.snapshot_bytes
    found = plan(options=PlanOptions(prefix_cache=10 * one + 5))
    assert (found.capacity.snapshots, found.capacity.borders) == (10, kv.BORDERS)
    more = 10 * one + kv.border_bytes(flash(), KvFormat.FP8)
    assert found.need == without.need + more
    assert found.to_json()["kv"]["prefix_bytes"] == 10 * one
    assert "10 snapshots for prompts that begin alike" in found.report()
    with pytest.raises(
        InputError, match=r"--prefix-cache 1 holds no snapshot: need at least 4 MiB"
    ):
        plan(options=PlanOptions(prefix_cache=2**20))


def test_auto_takes_a_snapshot_for_sixteen_pages() -> None:
    for tokens, snapshots in ((128, 4), (65_536, 32)):
        options = PlanOptions(kv_tokens=tokens, prefix_cache=None)
        assert plan(options=options).capacity.snapshots == snapshots


def test_snapshots_that_do_not_fit_are_the_first_to_go() -> None:
    found = plan(options=PlanOptions(prefix_cache=2**42))
    assert not found.fits
    assert found.knob is not None
    assert "--prefix-cache off" in found.knob
