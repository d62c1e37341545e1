"""The placement report: its arithmetic for the machine this was made for, and its words."""

from pathlib import Path

import pytest

from deskside.core import RankReport
from deskside.layout.names import Component
from deskside.machine.placement import place
from deskside.machine.topology import read_topology
from deskside.planning.components import components_of
from deskside.report.ranks import ranks_json, ranks_table
from tests.flash import flash
from tests.unit.machine.trees import desk, put

GIB = 1024**3
ROUTED = (Component.ROUTED_EXPERTS, Component.MTP_ROUTED_EXPERTS)


@pytest.fixture
def reports(tmp_path: Path) -> tuple[RankReport, ...]:
    """Four ranks on two sockets, with the real model."""
    placement = place(read_topology(put(tmp_path, desk())), ranks=4)
    parts = {one.component: one.rank for one in components_of(flash(), 4, drafter=True)}
    banks = sum(parts[component] for component in ROUTED)
    return tuple(
        RankReport(
            rank=one.rank,
            nodes=one.nodes,
            bank_bytes=banks,
            other_bytes=sum(parts.values()) - banks,
            device_bytes=GIB,
            workers=one.threads,
            coordinator=one.coordinator,
            resident={one.nodes[0]: banks},
        )
        for one in placement.ranks
    )


def test_the_table_of_two_sockets_and_four_ranks(reports: tuple[RankReport, ...]) -> None:
    head, *rows = ranks_table(reports)
    names = "node rank banks other weights device workers coordinator banks lie on"
    assert " ".join(head.split()) == names
    assert [row.split()[:4] for row in rows[:4]] == [
        ["0", "0", "36.66", "GiB"],
        ["0", "1", "36.66", "GiB"],
        ["1", "2", "36.66", "GiB"],
        ["1", "3", "36.66", "GiB"],
    ]
    assert rows[0].endswith("0: 36.66 GiB")
    assert rows[4:6] == ["node 0: 73.31 GiB of banks", "node 1: 73.31 GiB of banks"]
    assert rows[6].startswith("in all: 146.62 GiB of banks, ")


def test_the_values(reports: tuple[RankReport, ...]) -> None:
    found = ranks_json(reports)
    assert found["bank_bytes"] == 157_437_394_944
    assert found["nodes"] == {"0": 78_718_697_472, "1": 78_718_697_472}
    assert found["cpu_bytes"] == 4 * 42_771_232_120
    assert found["device_bytes"] == 4 * GIB
    assert [one["workers"] for one in found["ranks"]] == [one.workers for one in reports]
    assert found["ranks"][3]["resident_bytes"] == {"1": 157_437_394_944 // 4}


def test_a_rank_of_two_nodes_and_a_kernel_that_tells_nothing() -> None:
    one = RankReport(0, (0, 1), 10, 5, 0, 3, (0,), {})
    lines = list(ranks_table([one]))
    assert lines[1].endswith("not told")
    assert "node 1: 5 B of banks" in lines
    assert lines[-1] == "in all: 10 B of banks, 15 B, 0.0 % of it on a device"
