"""How many tokens the key/value cache holds: what was asked for, or what is sensible here.

Owns the rules of `--kv-tokens auto` and `--prefix-cache auto`, and the search for the largest
number that still fits. Pure arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass

from deskside.errors import InputError
from deskside.layout.kv import (
    BORDERS,
    PAGE,
    SCRATCH_PAGES,
    KvFormat,
    border_bytes,
    draft_bytes,
    page_bytes,
    pages_for,
    slot_bytes,
    snapshot_bytes,
    state_bytes,
)
from deskside.spec import ModelSpec

__all__ = ["AUTO_MOST", "AUTO_SHARE", "Capacity", "auto_pages", "largest", "snapshots_for"]

AUTO_MOST = 65_536
"""Tokens that auto never passes on a CPU."""

AUTO_SHARE = 4
"""Auto takes at most one part in this many of the free memory."""


AUTO_SNAPSHOTS = 4
"""Snapshots that auto takes at least."""

PAGES_A_SNAPSHOT = 16
"""Pages for which auto takes one snapshot."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The cache of one rank: pages of 128 tokens shared by all sequences, and sequence slots.

    `snapshots` are copies of a slot's rings, for sequences that begin alike.
    """

    kv_format: KvFormat
    pages: int
    slots: int
    page_bytes: int
    slot_bytes: int
    snapshots: int
    snapshot_bytes: int
    nbytes: int

    @property
    def tokens(self) -> int:
        """Tokens of all sequences together."""
        return self.pages * PAGE

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pages, the scratch page included."""
        return (self.pages + SCRATCH_PAGES) * self.page_bytes

    @property
    def borders(self) -> int:
        """Page borders of a step that are staged for snapshots."""
        return BORDERS if self.snapshots else 0

    @property
    def prefix_bytes(self) -> int:
        """Bytes of the snapshots."""
        return self.snapshots * self.snapshot_bytes

    @staticmethod
    def of(
        spec: ModelSpec,
        kv_format: KvFormat,
        pages: int,
        slots: int,
        drafter: bool = False,
        snapshots: int = 0,
    ) -> "Capacity":
        """Count the bytes of a number of pages and slots, with the drafter's where it is used."""
        draft = draft_bytes(spec, kv_format) if drafter else 0
        snapshot = snapshot_bytes(spec, kv_format, drafter)
        borders = border_bytes(spec, kv_format, drafter) if snapshots else 0
        return Capacity(
            kv_format,
            pages,
            slots,
            page_bytes(spec, kv_format),
            slot_bytes(spec, kv_format) + draft,
            snapshots,
            snapshot,
            state_bytes(spec, kv_format, pages, slots)
            + slots * draft
            + borders
            + snapshots * snapshot,
        )


def snapshots_for(
    spec: ModelSpec, kv_format: KvFormat, pages: int, drafter: bool, budget: int | None
) -> int:
    """Return the snapshots of a budget in bytes; None is auto, by the pages.

    Raises:
        InputError: the budget is not nothing, and too small for one.
    """
    if budget is None:
        return max(AUTO_SNAPSHOTS, pages // PAGES_A_SNAPSHOT)
    one = snapshot_bytes(spec, kv_format, drafter)
    if 0 < budget < one:
        need = -(-one // 2**20)
        raise InputError(
            f"--prefix-cache {budget // 2**20} holds no snapshot: need at least {need} MiB; raise "
            "it, or use off"
        )
    return budget // one


def auto_pages(spec: ModelSpec, kv_format: KvFormat, free: Callable[[int], int]) -> int:
    """Return the pages that auto takes: at least one, whether it fits or not.

    The least of the model's own limit, 65,536 tokens, and a quarter of the free memory; `free`
    gives the bytes that are left for pages when the rest is sized for a number of pages.
    """
    page = page_bytes(spec, kv_format)
    limit = pages_for(min(spec.max_positions, AUTO_MOST))
    return max(1, largest(limit, lambda pages: AUTO_SHARE * pages * page <= free(pages)))


def largest(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest n in [1, limit] that fits, or 0; what fits also fits for smaller n."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
