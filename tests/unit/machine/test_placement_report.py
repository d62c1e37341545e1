"""A placement in words, and banks that lie in the wrong place."""

from pathlib import Path

from deskside.config.engine import EngineOptions
from deskside.machine.topology import read_topology
from deskside.report.placement import astray, residency_line, threads_line
from deskside.runtime.placing import placed
from tests.unit.machine.trees import GIB, desk, machine_files, put


def test_the_desk_in_words(tmp_path: Path) -> None:
    topology = read_topology(put(tmp_path, desk()))
    placement = placed(topology, EngineOptions(), 4)
    assert threads_line(placement.ranks[3]) == (
        "rank 3, node 1: 9 workers on CPUs 31-39 (one a core), coordinator on CPUs 30,70"
    )
    loose = placed(topology, EngineOptions(bind="off"), 4)
    assert loose.ranks[0].workers == (placement.ranks[0].cpus,) * 9
    assert "(untied)" in threads_line(loose.ranks[0])


def test_few_cores_in_words(tmp_path: Path) -> None:
    files = machine_files({0: "0-1"}, [(0,), (1,)], allowed="0-1", online="0-1")
    topology = read_topology(put(tmp_path, files))
    assert threads_line(placed(topology, EngineOptions()).ranks[0]) == (
        "rank 0, node 0: 2 threads on CPUs 0-1, the coordinator among them"
    )
    assert threads_line(placed(topology, EngineOptions(), 3).ranks[2]) == (
        "rank 2, node 0: 1 thread on CPUs 0, the coordinator among them; idle ones sleep"
    )


def test_banks_and_their_nodes(tmp_path: Path) -> None:
    topology = read_topology(put(tmp_path, desk()))
    placement = placed(topology, EngineOptions(), 4)
    assert residency_line({0: 73 * GIB, 1: 0}) == "banks: node 0 73.00 GiB, node 1 0 B"
    assert list(astray(placement, {0: GIB, 1: GIB})) == []
    assert list(astray(placement, {})) == []
    nodes = {0: 100 * GIB, 2: 10 * GIB}  # a node that no rank is on
    (said,) = astray(placement, nodes)
    assert said.startswith("10.00 GiB of 110.00 GiB of the banks lie")
    assert list(astray(placement, {0: 100 * GIB, 2: 4 * GIB})) == []
