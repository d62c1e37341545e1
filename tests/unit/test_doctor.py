"""`deskside doctor`: every row in every state, by facts that are records, and the whole command."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deskside.cli import main
from deskside.config.engine import EngineOptions
from deskside.errors import CheckpointError, InputError, ProfileError
from deskside.kernels.tiers import Tiers
from deskside.machine.devices import PciDevice
from deskside.machine.machine import Machine
from deskside.machine.memory import Memory
from deskside.machine.topology import Node, Topology, read_topology
from deskside.planning.options import PlanOptions
from deskside.planning.plan import Plan, make_plan
from deskside.report.doctor import Check, Facts, State, as_json, as_lines, diagnose, fit
from deskside.runtime.examine import examine
from deskside.runtime.placing import placed
from tests.flash import flash
from tests.unit.machine.trees import GIB, desk, machine_files, put
from tests.unit.planning.test_experts import RATES

SLOW = Tiers(("portable",), "portable", False)
NAMES = ["kernels", "threads", "binding", "topology", "devices", "load", "memory", "huge pages"]
NAMES += ["profile", "leftovers"]


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """Return those of a machine of two sockets that has room for the real model."""
    topology = read_topology(put(tmp_path, desk()))
    return Facts(
        machine=Machine(Memory(502 * GIB, 400 * GIB), topology),
        devices=(PciDevice("0000:17:00.0", 0), PciDevice("0000:b3:00.0", 1)),
        tiers=Tiers(("avx512vnni", "avx2", "portable"), "avx512vnni", False),
        tier_error=None,
        placement=placed(topology, EngineOptions(), 2),
        bind_error=None,
        plan=planned(topology, 400),
        huge_pages="madvise",
        load=1.0,
    )


def planned(topology: Topology, gib: int) -> Plan:
    machine = Machine(Memory(502 * GIB, gib * GIB), topology)
    return make_plan(flash(), machine, PlanOptions(kv_tokens=65_536), RATES)


def row(facts: Facts, name: str) -> Check:
    (found,) = [check for check in diagnose(facts) if check.name == name]
    return found


def with_topology(facts: Facts, **changed: Any) -> Facts:
    topology = replace(facts.machine.topology, **changed)
    return replace(facts, machine=replace(facts.machine, topology=topology))


def test_what_was_left_behind_is_named(facts: Facts) -> None:
    assert row(facts, "leftovers").state is State.OK
    found = row(replace(facts, leftovers=["process 7 ('x') of run r, which is over"]), "leftovers")
    assert (found.state, found.knob) == (State.WARN, "doctor --clean")
    assert "process 7" in found.found


def test_a_machine_that_is_fit(facts: Facts) -> None:
    free = replace(facts.machine.topology.nodes[0], memory_free=200 * GIB)
    other = replace(facts.machine.topology.nodes[1], memory_free=200 * GIB)
    checks = diagnose(with_topology(facts, nodes=(free, other)))
    assert [check.name for check in checks] == NAMES
    assert {check.state for check in checks} == {State.OK}
    assert fit(checks)
    lines = list(as_lines(checks))
    assert lines[-1] == "This machine is fit."
    assert lines[0] == "ok    kernels     avx512vnni; here: avx512vnni, avx2, portable"
    assert len(lines) == 2 * len(NAMES) + 1


@pytest.mark.parametrize(
    ("name", "state", "said", "changed"),
    [
        ("kernels", State.WARN, "the slowest kernels", {"tiers": SLOW}),
        ("kernels", State.FAIL, "--tier mmx", {"tier_error": InputError("--tier mmx: not here")}),
        ("threads", State.FAIL, "a load is refused", {"placement": InputError("--threads 99")}),
        ("binding", State.WARN, "a thread cannot", {"bind_error": "cannot be bound"}),
        ("devices", State.OK, "on the CPU", {"devices": ()}),
        ("devices", State.WARN, "in order", {"devices": (PciDevice("0000:01:00.0", None),)}),
        ("load", State.WARN, "unsteady", {"load": 21.0}),
        ("memory", State.FAIL, "field 'x'", {"plan": CheckpointError("config.json: field 'x'")}),
        ("huge pages", State.WARN, "page tables", {"huge_pages": "never"}),
        ("huge pages", State.WARN, "page tables", {"huge_pages": None}),
    ],
)  # fmt: skip
def test_rows(facts: Facts, name: str, state: State, said: str, changed: dict[str, Any]) -> None:
    changes = replace(facts, **changed)
    found = row(changes, name)
    assert found.state is state
    assert said in found.means
    assert found.knob or state is State.OK
    assert fit(diagnose(changes)) == (state is not State.FAIL)
    text = "\n".join(as_lines(diagnose(changes)))
    assert found.found in text
    assert ("not fit: " + name in text) == (state is State.FAIL)


def test_what_a_placement_loses(facts: Facts) -> None:
    single = placed(facts.machine.topology, EngineOptions())
    found = row(replace(facts, placement=single), "threads")
    assert found.state is State.WARN
    assert "spans nodes 0, 1" in found.means


def test_memory_that_does_not_fit(facts: Facts) -> None:
    found = row(replace(facts, plan=planned(facts.machine.topology, 100)), "memory")
    assert found.state is State.FAIL
    assert "the model needs " in found.means
    assert "no option helps" in found.knob


def test_memory_that_lies_elsewhere(facts: Facts) -> None:
    """All banks of one node's ranks, and a node that is half taken by the page cache."""
    found = row(facts, "memory")  # 251 GiB a node, half of them free: together enough
    assert found.state is State.OK
    nodes = facts.machine.topology.nodes
    taken = tuple(replace(node, memory_free=60 * GIB) for node in nodes)
    found = row(with_topology(facts, nodes=taken), "memory")
    assert found.state is State.WARN
    assert "nodes 0, 1 have 120.00 GiB unused" in found.means


def test_topologies_that_lose_something(facts: Facts, tmp_path: Path) -> None:
    files = machine_files(
        {0: "0-3", 1: "4-7", 2: "8-11"},
        [(c,) for c in range(12)],
        allowed="0-9",
        online="0-10",
        offline="11",
        memory={0: 64, 1: 0, 2: 64},
        mems="0-1",
    )
    topology = read_topology(put(tmp_path / "other", files))
    found = row(replace(facts, machine=replace(facts.machine, topology=topology)), "topology")
    assert found.state is State.WARN
    for said in (
        "10 of 11 CPUs are allowed here",
        "CPUs 11 are switched off",
        "node 1 has CPUs and no memory",
        "memory of node 2 is not allowed",
    ):
        assert said in found.means
    flat = Topology("Some CPU", (0, 1), ((0, 1),), (Node(0, (0, 1), 0, 0),), frozenset())
    found = row(replace(facts, machine=replace(facts.machine, topology=flat)), "topology")
    assert found.state is State.OK
    assert "1 cores (2 CPUs)" in found.found


def test_a_tree_is_examined(tmp_path: Path) -> None:
    root = put(tmp_path, desk())
    put(root, {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"})
    checks = {check.name: check for check in examine("deskside-mini", EngineOptions(), root)}
    assert checks["devices"].found.count("on node") == 4
    assert checks["huge pages"].state is State.WARN
    assert "40 cores (80 CPUs)" in checks["topology"].found
    assert checks["threads"].state is State.WARN  # one rank over two nodes


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in found["checks"]] == NAMES
    assert code == (0 if found["fit"] else 3)
    assert main(["doctor", "--threads", "4096"]) == 3
    text = capsys.readouterr().out
    assert "fail  threads     --threads 4096: rank 0 may use " in text
    assert text.splitlines()[-1] == "This machine is not fit: threads."
    assert main(["doctor", "--model", "nothing"]) == 3
    assert "no such folder" in capsys.readouterr().out


def test_json_holds_every_row(facts: Facts) -> None:
    values = json.loads(json.dumps(as_json(diagnose(facts))))
    assert values["checks"][0].keys() == {"name", "state", "found", "means", "knob"}


def test_torch_is_not_loaded() -> None:
    code = (
        "import sys; from deskside.cli import main; code = main(['doctor']);"
        "sys.exit(code or 9 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode in (0, 3), done.stderr


def test_a_machine_that_was_not_measured(facts: Facts) -> None:
    assert "tok/s" in row(facts, "profile").found
    stale = ProfileError("one.json: was made with threads 2, now 4: run `deskside profile`")
    plan = make_plan(flash(), facts.machine, PlanOptions(kv_tokens=65_536), stale)
    found = row(replace(facts, plan=plan), "profile")
    assert found.state is State.WARN
    assert found.found == str(stale)
    assert found.knob == "deskside profile"
    assert "--backend hybrid" in found.means
    assert row(replace(facts, plan=stale), "profile").means == "there is no plan"
