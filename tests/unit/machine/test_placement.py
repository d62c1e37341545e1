"""Cores given to ranks, on machines that are trees of files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskside.errors import InputError
from deskside.machine.devices import node_of, read_accelerators
from deskside.machine.nodes import Domain, domains
from deskside.machine.placement import Placement, RankPlace, place
from deskside.machine.topology import Node, Topology, read_topology
from tests.unit.machine.trees import desk, device_files, machine_files, put


def flat(cores: int, **changed: Any) -> Topology:
    """One node of cores without second threads."""
    cpus = tuple(range(cores))
    threads = tuple((cpu,) for cpu in cpus)
    topology = Topology("Some CPU", cpus, threads, (Node(0, cpus, 1, 1),), frozenset())
    return replace(topology, **changed)


def shape(one: RankPlace) -> tuple[int, bool, bool]:
    return len(one.workers), one.coordinator_works, one.spin


def test_two_sockets_four_cards(tmp_path: Path) -> None:
    root = put(tmp_path, desk())
    topology = read_topology(root)
    devices = [device.node for device in read_accelerators(root)]
    assert devices == [0, 0, 1, 1]
    assert topology.nodes[0].distances == {0: 10, 1: 21}
    found = place(topology, 4, devices)
    assert found.warnings == ()
    assert found.topology == topology
    assert [one.nodes for one in found.ranks] == [(0,), (0,), (1,), (1,)]
    assert [shape(one) for one in found.ranks] == [(9, False, True)] * 4
    first = found.ranks[0]
    assert first.coordinator == (0, 40)  # its core's second thread is nobody else's
    assert first.workers == tuple((cpu,) for cpu in range(1, 10))
    assert first.cpus == (*range(10), *range(40, 50))
    assert found.ranks[3].workers == tuple((cpu,) for cpu in range(31, 40))
    assert not disturbed(found)


def test_ranks_without_devices_are_spread_in_order(tmp_path: Path) -> None:
    topology = read_topology(put(tmp_path, desk()))
    assert [one.nodes for one in place(topology, 4).ranks] == [(0,), (0,), (1,), (1,)]
    assert place(topology, 4, [None] * 4) == place(topology, 4)
    one = place(topology, 1)
    assert one.ranks[0].nodes == (0, 1)
    assert len(one.ranks[0].workers) == 37
    assert "spans nodes 0, 1" in one.warnings[0]
    assert "--tp 2" in one.warnings[0]


def test_cards_decide_the_order_of_ranks(tmp_path: Path) -> None:
    topology = read_topology(put(tmp_path, desk()))
    assert [one.nodes for one in place(topology, 4, [1, 1, 0, 0]).ranks] == [(1,), (1,), (0,), (0,)]
    mixed = place(topology, 4, [1, None, None, 1])
    assert [one.nodes for one in mixed.ranks] == [(1,), (0,), (0,), (1,)]
    single = place(topology, 1, [1])
    assert single.ranks[0].nodes == (1, 0)
    assert single.ranks[0].coordinator == (20, 21, 22, 60, 61, 62)  # on the device's node
    crooked = place(topology, 4, [0, 0, 0, 0])
    assert [one.nodes for one in crooked.ranks] == [(0,)] * 4
    assert [shape(one) for one in crooked.ranks] == [(4, False, True)] * 4
    assert "node 1 has no rank" in crooked.warnings[0]


def test_interleaved_lists_and_second_threads(tmp_path: Path) -> None:
    files = machine_files(
        {0: "0-15,32-47", 1: "16-31,48-63"},
        [(cpu, cpu + 32) for cpu in range(32)],
        allowed="0-63",
        online="0-63",
    )
    found = place(read_topology(put(tmp_path, files)), 2)
    assert [one.nodes for one in found.ranks] == [(0,), (1,)]
    assert found.ranks[1].workers == tuple((cpu,) for cpu in range(19, 32))
    assert found.ranks[1].coordinator == (16, 17, 18, 48, 49, 50)  # two cores are spare
    assert not disturbed(found)


def test_the_mask_comes_first(tmp_path: Path) -> None:
    """A cpuset that allows the second threads of node 0 alone."""
    files = machine_files(
        {0: "0-3,8-11", 1: "4-7,12-15"},
        [(cpu, cpu + 8) for cpu in range(8)],
        allowed="8-11",
        online="0-15",
        mems="0",
    )
    topology = read_topology(put(tmp_path, files))
    assert topology.cores == ((8,), (9,), (10,), (11,))
    assert [node.memory_allowed for node in topology.nodes] == [True, False]
    found = place(topology)
    assert found.ranks[0].nodes == (0,)
    assert found.ranks[0].coordinator == (8,)
    assert found.ranks[0].workers == ((9,), (10,), (11,))
    assert found.warnings == ()


def test_offline_cpus_are_nobodys(tmp_path: Path) -> None:
    files = machine_files(
        {0: "0-5"}, [(c,) for c in range(8)], allowed="0-7", online="0-3,5-6", offline="4,7"
    )
    topology = read_topology(put(tmp_path, files))
    assert topology.offline == (4, 7)
    assert topology.cpus == (0, 1, 2, 3, 5, 6)
    used = {cpu for one in place(topology, 2).ranks for cpu in one.cpus}
    assert used == {0, 1, 2, 3, 5, 6}  # 6 is of no node, and still used


def test_cores_of_a_node_without_memory_go_to_the_nearest(tmp_path: Path) -> None:
    files = machine_files(
        {0: "0-3", 1: "4-7", 2: "8-11", 3: ""},
        [(c,) for c in range(12)],
        allowed="0-11",
        online="0-11",
        memory={0: 64, 1: 0, 2: 64, 3: 256},
        distances={1: "21 10 12 30"},
    )
    topology = read_topology(put(tmp_path, files))
    assert domains(topology) == (
        Domain(0, tuple((c,) for c in range(4))),
        Domain(2, tuple((c,) for c in range(4, 12))),
    )
    found = place(topology, 2)
    assert [one.nodes for one in found.ranks] == [(0,), (2,)]
    assert [len(one.workers) for one in found.ranks] == [3, 7]


def test_memory_that_a_cpuset_forbids_is_not_a_home(tmp_path: Path) -> None:
    files = machine_files(
        {0: "0-3", 1: "4-7"}, [(c,) for c in range(8)], allowed="0-3", online="0-7", mems="1"
    )
    found = place(read_topology(put(tmp_path, files)))
    assert found.ranks[0].nodes == (1,)
    assert found.ranks[0].cpus == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("cores", "workers", "works"),
    [(1, 0, True), (2, 1, True), (3, 2, True), (4, 3, False), (8, 7, False), (10, 9, False),
     (12, 10, False), (16, 13, False), (32, 29, False)],
)  # fmt: skip
def test_cores_of_one_rank(cores: int, workers: int, works: bool) -> None:
    one = place(flat(cores)).ranks[0]
    assert shape(one) == (workers, works, True)
    assert one.cpus == tuple(range(cores))
    tied = [len(cpus) for cpus in one.workers]
    assert tied == ([cores] if works else [1]) * workers
    assert one.threads == workers + works


def test_asked_threads() -> None:
    topology = replace(flat(8), cores=((0, 4), (1, 5), (2, 6), (3, 7)))

    def threads(count: int) -> RankPlace:
        found = place(topology, threads=count)
        assert found.ranks[0].threads == count
        return found.ranks[0]

    assert threads(1).workers == ((3,),)
    assert threads(1).coordinator == (0, 1, 2, 4, 5, 6)
    assert threads(3).workers == ((1,), (2,), (3,))
    assert threads(4).coordinator_works
    assert shape(threads(8)) == (7, True, True)
    with pytest.raises(InputError, match=r"--threads 9: rank 0 may use 8 CPUs; use --threads 8"):
        threads(9)
    with pytest.raises(InputError, match="rank 0 may use 1 CPU; use --threads 1 or auto"):
        place(flat(2), 2, threads=2)


def test_more_ranks_than_cores_share_and_never_spin() -> None:
    found = place(flat(2), 4)
    assert [one.cpus for one in found.ranks] == [(0,), (1,), (0,), (1,)]
    assert [shape(one) for one in found.ranks] == [(0, True, False)] * 4
    assert "4 ranks share 2 CPUs" in found.warnings[0]


def test_a_quota_counts_like_cores() -> None:
    found = place(flat(8, quota=2.5))
    assert shape(found.ranks[0]) == (1, True, True)
    assert "grants 2.5 of 8 cores: 2 compute threads run" in found.warnings[0]
    asked = place(flat(8, quota=2.5), threads=6)
    assert shape(asked.ranks[0]) == (6, False, False)
    assert "--threads 6 is more than that" in asked.warnings[0]
    assert place(flat(8, quota=8.0)).warnings == ()
    assert shape(place(flat(8, quota=0.5)).ranks[0]) == (0, True, False)


def test_a_card_far_from_its_rank_is_told() -> None:
    nodes = (Node(0, (0, 1), 1, 1), Node(1, (), 1, 1))
    found = place(flat(2, nodes=nodes), 1, [1])
    assert "its device is on node 1, its cores are on node 0" in found.warnings[0]


@pytest.mark.parametrize(
    ("number", "local", "node"),
    [(1, "", 1), (-1, "2-3", 1), (-1, "0-3", None), (-1, "", None)],
)
def test_node_of_a_card(tmp_path: Path, number: int, local: str, node: int | None) -> None:
    files = machine_files(
        {0: "0-1", 1: "2-3"}, [(c,) for c in range(4)], allowed="0-3", online="0-3"
    )
    root = put(tmp_path, files | device_files("0000:3b:00.0", number, local))
    put(root, device_files("0000:01:00.0", 0, vendor="0x8086"))
    (card,) = read_accelerators(root)
    assert (card.address, card.node) == ("0000:3b:00.0", node)
    assert node_of("00000000:3B:00.0", root) == node  # as drivers spell it
    assert node_of("0000:ff:00.0", root) is None
    assert read_accelerators(tmp_path / "nothing") == ()


def disturbed(found: Placement) -> set[int]:
    """Return the CPUs of worker cores that someone else may also run on."""
    siblings = {cpu: set(core) for core in found.topology.cores for cpu in core}
    worked = [siblings[one[0]] for rank in found.ranks for one in rank.workers]
    others = [{cpu} for rank in found.ranks for cpu in rank.coordinator]
    seen: set[int] = set()
    twice: set[int] = set()
    for cpus in (*worked, *others):
        twice |= seen & cpus
        seen |= cpus
    return twice


@given(
    cores=st.integers(1, 40),
    threads=st.integers(1, 2),
    nodes=st.integers(1, 4),
    ranks=st.integers(1, 6),
    data=st.data(),
)
def test_any_machine(cores: int, threads: int, nodes: int, ranks: int, data: st.DataObject) -> None:
    """Every rank computes; no two ranks meet unless there are too few cores; masks are obeyed."""
    numbered = tuple(tuple(c + t * cores for t in range(threads)) for c in range(cores))
    listed = tuple(
        Node(n, tuple(x for c in numbered[n::nodes] for x in c), 1, 1) for n in range(nodes)
    )
    cpus = tuple(sorted(cpu for core in numbered for cpu in core))
    topology = Topology("Some CPU", cpus, numbered, listed, frozenset())
    devices = data.draw(st.lists(st.sampled_from([None, *range(nodes)]), max_size=ranks))
    found = place(topology, ranks, devices)
    assert len(found.ranks) == ranks
    for one in found.ranks:
        assert one.threads >= 1
        assert one.coordinator
        used = {*one.coordinator, *(cpu for worker in one.workers for cpu in worker)}
        assert used <= set(one.cpus) <= set(cpus)
    if all(one.spin for one in found.ranks):
        taken = [cpu for one in found.ranks for cpu in one.cpus]
        assert len(taken) == len(set(taken))
        if not any(one.coordinator_works for one in found.ranks):
            assert not disturbed(found)
