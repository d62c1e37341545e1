"""The facts that a measurement depends on."""

from dataclasses import replace

import pytest

from deskside.machine.fingerprint import Fingerprint, cpu_list
from deskside.machine.topology import Node, Topology, parse_cpu_list

CPUS = (0, 1, 2, 3, 8, 10, 11)
TOPOLOGY = Topology(
    "Some CPU", CPUS, tuple((c,) for c in CPUS), (Node(0, CPUS, 0, 0),), frozenset()
)
ONE = Fingerprint.of(TOPOLOGY, 4, "avx512")


def test_a_machine_in_words() -> None:
    assert Fingerprint("Some CPU", "0-3,8,10-11", 4, "avx512", "cpu", "none") == ONE


@pytest.mark.parametrize("cpus", [(), (0,), (5,), (0, 1), (0, 2), CPUS])
def test_cpu_lists_are_read_back(cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(cpu_list(cpus)) == cpus


def test_the_same_machine_has_no_differences() -> None:
    assert ONE.differences(Fingerprint.of(TOPOLOGY, 4, "avx512")) == ""


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("cpu", "Other CPU", "cpu Some CPU, now Other CPU"),
        ("cpus", "0-1", "cpus 0-3,8,10-11, now 0-1"),
        ("threads", 2, "threads 4, now 2"),
        ("kernels", "avx2", "kernels avx512, now avx2"),
        ("device", "H200", "device cpu, now H200"),
        ("driver", "580.1", "driver none, now 580.1"),
    ],
)
def test_every_fact_counts(field: str, value: object, words: str) -> None:
    assert ONE.differences(replace(ONE, **{field: value})) == words
