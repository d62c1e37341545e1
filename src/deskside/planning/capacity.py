"""How many tokens the key/value cache holds: what was asked for, or what is sensible here.

Owns the rule of `--kv-tokens auto` and the search for the largest number that still fits. Pure
arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass

from deskside.layout.kv import (
    PAGE,
    SCRATCH_PAGES,
    KvFormat,
    draft_bytes,
    page_bytes,
    pages_for,
    slot_bytes,
    state_bytes,
)
from deskside.spec import ModelSpec

__all__ = ["AUTO_MOST", "AUTO_SHARE", "Capacity", "auto_pages", "largest"]

AUTO_MOST = 65_536
"""Tokens that auto never passes on a CPU."""

AUTO_SHARE = 4
"""Auto takes at most one part in this many of the free memory."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The cache of one rank: pages of 128 tokens shared by all sequences, and sequence slots."""

    kv_format: KvFormat
    pages: int
    slots: int
    page_bytes: int
    slot_bytes: int
    nbytes: int

    @property
    def tokens(self) -> int:
        """Tokens of all sequences together."""
        return self.pages * PAGE

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pages, the scratch page included."""
        return (self.pages + SCRATCH_PAGES) * self.page_bytes

    @staticmethod
    def of(
        spec: ModelSpec, kv_format: KvFormat, pages: int, slots: int, drafter: bool = False
    ) -> "Capacity":
        """Count the bytes of a number of pages and slots, with the drafter's where it is used."""
        draft = draft_bytes(spec, kv_format) if drafter else 0
        return Capacity(
            kv_format,
            pages,
            slots,
            page_bytes(spec, kv_format),
            slot_bytes(spec, kv_format) + draft,
            state_bytes(spec, kv_format, pages, slots) + slots * draft,
        )


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
