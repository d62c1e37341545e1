"""What each rank holds and where, once it serves: as a table to read, and as plain values.

Owns the sums by node and in all, and the words. Bytes come from the ranks themselves.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from deskside.core import RankReport
from deskside.machine.fingerprint import cpu_list
from deskside.planning.amounts import amount

__all__ = ["ranks_json", "ranks_table"]

HEAD = (
    "node",
    "rank",
    "banks",
    "other weights",
    "device",
    "workers",
    "coordinator",
    "banks lie on",
)


def ranks_table(reports: Sequence[RankReport]) -> Iterator[str]:
    """Yield lines: one a rank, one a node, and the whole."""
    rows = [HEAD, *(_row(one) for one in reports)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
    for node, size in _banks_by_node(reports).items():
        yield f"node {node}: {amount(size)} of banks"
    found = _sums(reports)
    whole = found["cpu_bytes"] + found["device_bytes"]
    share = 100 * found["device_bytes"] / whole if whole else 0.0
    yield (
        f"in all: {amount(found['bank_bytes'])} of banks, {amount(whole)}, {share:.1f} % of it on "
        "a device"
    )


def ranks_json(reports: Sequence[RankReport]) -> dict[str, Any]:
    """Return the same as plain values, all sizes in bytes."""
    return {
        "ranks": [
            {
                "rank": one.rank,
                "nodes": list(one.nodes),
                "bank_bytes": one.bank_bytes,
                "other_bytes": one.other_bytes,
                "device_bytes": one.device_bytes,
                "workers": one.workers,
                "coordinator": list(one.coordinator),
                "resident_bytes": {str(node): size for node, size in one.resident.items()},
            }
            for one in reports
        ],
        "nodes": {str(node): size for node, size in _banks_by_node(reports).items()},
        **_sums(reports),
    }


def _row(one: RankReport) -> tuple[str, ...]:
    lies = ", ".join(f"{node}: {amount(size)}" for node, size in one.resident.items())
    return (
        "+".join(map(str, one.nodes)),
        str(one.rank),
        amount(one.bank_bytes),
        amount(one.other_bytes),
        amount(one.device_bytes),
        str(one.workers),
        cpu_list(one.coordinator),
        lies or "not told",
    )


def _banks_by_node(reports: Sequence[RankReport]) -> dict[int, int]:
    """Divide every rank's banks evenly among its nodes: the plan, not where pages came to lie."""
    found: dict[int, int] = {}
    for one in reports:
        for node in one.nodes:
            found[node] = found.get(node, 0) + one.bank_bytes // len(one.nodes)
    return dict(sorted(found.items()))


def _sums(reports: Sequence[RankReport]) -> dict[str, int]:
    banks = sum(one.bank_bytes for one in reports)
    return {
        "bank_bytes": banks,
        "cpu_bytes": banks + sum(one.other_bytes for one in reports),
        "device_bytes": sum(one.device_bytes for one in reports),
    }
