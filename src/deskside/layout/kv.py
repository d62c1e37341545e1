"""Bytes of the key/value state: cached rows, pages, window rings, carry rings and staging.

Owns the formulas that a plan adds up and that the owners of state allocate by. A page holds what
128 tokens of one sequence leave behind for good in all layers; rings, carries and staging belong to
a sequence slot. Knows no tensors.
"""

from enum import StrEnum

from deskside.errors import InputError
from deskside.spec import CSA_RATIO, HCA_RATIO, ModelSpec

__all__ = [
    "BORDERS",
    "MOST_PROPOSALS",
    "PAGE",
    "SCRATCH_PAGES",
    "KvFormat",
    "border_bytes",
    "carry_bytes",
    "carry_crosses",
    "carry_rows",
    "carry_widths",
    "check_format",
    "context_bytes",
    "draft_bytes",
    "entries_per_page",
    "index_row_bytes",
    "layer_page_bytes",
    "page_bytes",
    "pages_for",
    "ring_bytes",
    "row_bytes",
    "slot_bytes",
    "snapshot_bytes",
    "staged_rows",
    "staging_bytes",
    "state_bytes",
]

PAGE = 128
"""Tokens of a page."""

MOST_PROPOSALS = 8
"""Rows beyond a ring's length that staging keeps, so that any rejected suffix can be dropped."""

BORDERS = 2
"""Page borders far before the end of their span that one step stages rows of, for snapshots."""

SCRATCH_PAGES = 1
"""Pages of a pool beyond the table's: padded writes go there."""

FLOAT = 4
BF16 = 2
FP8_BLOCK = 64
MXFP4_BLOCK = 32
ROW_ALIGNMENT = 8


class KvFormat(StrEnum):
    """How cached rows are stored.

    FP8 is the reference's cache: E4M3 in blocks of 64 beside BF16 rotated dimensions, index keys in
    MXFP4. FLOAT32 keeps every row as computed, for oracles.
    """

    FP8 = "fp8"
    FLOAT32 = "float32"


def check_format(spec: ModelSpec, kv_format: KvFormat) -> None:
    """Refuse FP8 rows for head widths that end in a partial block.

    Raises:
        InputError: names the width and the format that works.
    """
    if kv_format is KvFormat.FLOAT32:
        return
    for field, dimensions, block in (
        ("head_dim - qk_rope_head_dim", spec.nope_dim, FP8_BLOCK),
        ("index_head_dim", spec.index_dim, MXFP4_BLOCK),
    ):
        if dimensions % block:
            raise InputError(
                f"--kv-format fp8 needs {field} in whole blocks of {block}, this model has "
                f"{dimensions}; use --kv-format float32"
            )


def row_bytes(spec: ModelSpec, kv_format: KvFormat) -> int:
    """Bytes of one cached attention row: a window row or a compressed entry (584 for 448 + 64)."""
    if kv_format is KvFormat.FLOAT32:
        return FLOAT * spec.head_dim
    head = spec.nope_dim + -(-spec.nope_dim // FP8_BLOCK)
    return -(-head // ROW_ALIGNMENT) * ROW_ALIGNMENT + BF16 * spec.rope_dim


def index_row_bytes(spec: ModelSpec, kv_format: KvFormat) -> int:
    """Bytes of one index key (68 for 128 dimensions in MXFP4)."""
    if kv_format is KvFormat.FLOAT32:
        return FLOAT * spec.index_dim
    return spec.index_dim // 2 + -(-spec.index_dim // MXFP4_BLOCK)


def entries_per_page(ratio: int) -> int:
    """Compressed entries that 128 tokens leave in a layer: 0, 32 or 1."""
    return PAGE // ratio if ratio else 0


def layer_page_bytes(spec: ModelSpec, ratio: int, kv_format: KvFormat) -> int:
    """Bytes of one page in one layer of a ratio; a ratio of 4 keeps an index key per entry."""
    entry = row_bytes(spec, kv_format) if ratio else 0
    if ratio == CSA_RATIO:
        entry += index_row_bytes(spec, kv_format)
    return entries_per_page(ratio) * entry


def page_bytes(spec: ModelSpec, kv_format: KvFormat) -> int:
    """Bytes of one page in all layers: what 128 tokens of one sequence cost."""
    return sum(layer_page_bytes(spec, ratio, kv_format) for ratio in spec.ratios)


def pages_for(tokens: int) -> int:
    """Pages that hold a number of tokens."""
    return -(-tokens // PAGE)


def ring_bytes(spec: ModelSpec, kv_format: KvFormat) -> int:
    """Bytes of one slot's window rings: `window` rows in every trunk layer."""
    return spec.layers * spec.window * row_bytes(spec, kv_format)


def context_bytes(spec: ModelSpec, kv_format: KvFormat) -> int:
    """Bytes of one slot's draft context rings: `window` rows in every drafter stage."""
    stages = spec.drafter.stages if spec.drafter else 0
    return stages * spec.window * row_bytes(spec, kv_format)


def draft_bytes(spec: ModelSpec, kv_format: KvFormat) -> int:
    """Bytes of one slot's part of the drafter: context rings and their staging."""
    stages = spec.drafter.stages if spec.drafter else 0
    staging = stages * staged_rows(spec.window) * row_bytes(spec, kv_format)
    return context_bytes(spec, kv_format) + staging


def carry_rows(ratio: int) -> int:
    """Raw (c, s) rows a layer's compressor keeps: two windows of 4, or one of 128."""
    return {0: 0, CSA_RATIO: 2 * CSA_RATIO, HCA_RATIO: HCA_RATIO}[ratio]


def carry_crosses(ratio: int) -> int:
    """Return how many raw rows before a page border an entry behind it reads: 4, or none."""
    return carry_rows(ratio) - ratio


def carry_widths(spec: ModelSpec, ratio: int) -> tuple[int, ...]:
    """Elements of a raw row, c or s, per compressor of a layer: attention, then indexer.

    Overlapping compression (ratio 4) has an A and a B half.
    """
    if ratio == CSA_RATIO:
        return (2 * spec.head_dim, 2 * spec.index_dim)
    return (spec.head_dim,) if ratio else ()


def carry_bytes(spec: ModelSpec) -> int:
    """Bytes of one slot's carry rings: float32 c and s of `carry_rows` in every layer."""
    return sum(carry_rows(r) * _raw_row_bytes(spec, r) for r in spec.ratios)


def staged_rows(length: int) -> int:
    """Rows of one span that can still matter to a ring of a length, before it is known how many
    stay: 136 for windows and plain compression, 16 for overlapping compression.
    """
    return length + MOST_PROPOSALS


def staging_bytes(spec: ModelSpec, kv_format: KvFormat) -> int:
    """Bytes of one slot's staging: the staged rows of every window and carry ring."""
    windows = spec.layers * staged_rows(spec.window) * row_bytes(spec, kv_format)
    carries = (staged_rows(carry_rows(r)) * _raw_row_bytes(spec, r) for r in spec.ratios)
    return windows + sum(carries)


def slot_bytes(spec: ModelSpec, kv_format: KvFormat) -> int:
    """Bytes of one running sequence besides its pages: rings, carries and staging."""
    return ring_bytes(spec, kv_format) + carry_bytes(spec) + staging_bytes(spec, kv_format)


def snapshot_bytes(spec: ModelSpec, kv_format: KvFormat, drafter: bool = False) -> int:
    """Bytes of one snapshot: the rings of one slot whose rows are read past a page border."""
    carries = sum(carry_crosses(ratio) * _raw_row_bytes(spec, ratio) for ratio in spec.ratios)
    context = context_bytes(spec, kv_format) if drafter else 0
    return ring_bytes(spec, kv_format) + carries + context


def border_bytes(spec: ModelSpec, kv_format: KvFormat, drafter: bool = False) -> int:
    """Bytes of staging that snapshots add: whole rings of the borders of one step."""
    context = context_bytes(spec, kv_format) if drafter else 0
    return BORDERS * (ring_bytes(spec, kv_format) + carry_bytes(spec) + context)


def state_bytes(spec: ModelSpec, kv_format: KvFormat, pages: int, slots: int) -> int:
    """Bytes of the whole state for a number of pages and sequence slots, scratch page included."""
    pools = (pages + SCRATCH_PAGES) * page_bytes(spec, kv_format)
    return pools + slots * slot_bytes(spec, kv_format)


def _raw_row_bytes(spec: ModelSpec, ratio: int) -> int:
    return 2 * FLOAT * sum(carry_widths(spec, ratio))
