"""What a forward needs beside weights and state: an upper estimate of its transient tensors.

Owns the formula, which counts the plain bodies' float32 tensors at the widest moment of a forward.
Pure arithmetic.
"""

from deskside.layout.kv import entries_per_page, pages_for
from deskside.spec import CSA_RATIO, HCA_RATIO, ModelSpec

__all__ = ["PROCESS_RESERVE", "workspace_bytes"]

PROCESS_RESERVE = 304 * 1024**2
"""Bytes for the interpreter, its libraries and allocator slack."""

FLOAT = 4
INDEX = 8


def workspace_bytes(spec: ModelSpec, rows: int, logit_rows: int, kv_tokens: int) -> int:
    """Return bytes of transient tensors, process reserve included.

    Args:
        spec: the model's shapes.
        rows: most rows of one forward.
        logit_rows: most rows that get logits; each belongs to a span of its own.
        kv_tokens: tokens that a single sequence can reach.
    """
    layer = max(_attention(spec, rows, logit_rows, kv_tokens), _experts(spec, rows))
    logits = 3 * logit_rows * spec.vocab * FLOAT
    streams = 3 * rows * spec.streams * spec.hidden * FLOAT
    return PROCESS_RESERVE + streams + max(layer, logits) + _decoded(spec)


def _attention(spec: ModelSpec, rows: int, spans: int, kv_tokens: int) -> int:
    """Queries and outputs, window and raw rows, index scores, and the entries read."""
    queries = 3 * spec.heads * spec.head_dim
    raw = 8 * spec.head_dim if CSA_RATIO in spec.ratios else 4 * spec.head_dim
    window = (rows + spans * spec.window) * 3 * spec.head_dim
    total = (rows * (queries + raw + spec.window) + window) * FLOAT
    pages = pages_for(kv_tokens)
    widest = 0
    for ratio in {CSA_RATIO, HCA_RATIO} & set(spec.ratios):
        entries = pages * entries_per_page(ratio)
        chosen = min(entries, spec.index_topk) if ratio == CSA_RATIO else entries
        read = min(rows * chosen, spans * entries)
        part = 2 * read * spec.head_dim * FLOAT + 2 * rows * chosen * INDEX
        if ratio == CSA_RATIO:
            scores = rows * entries * (2 * FLOAT + INDEX)
            index_queries = 3 * rows * spec.index_heads * spec.index_dim * FLOAT
            keys = 2 * spans * entries * spec.index_dim * FLOAT
            part = max(part, scores + index_queries + keys)
        widest = max(widest, part)
    return total + widest


def _experts(spec: ModelSpec, rows: int) -> int:
    """Every row's output of every one of its experts, and one expert's hidden rows."""
    outputs = rows * (spec.topk + 3) * spec.hidden
    return (outputs + 3 * rows * spec.intermediate) * FLOAT


def _decoded(spec: ModelSpec) -> int:
    """One weight decoded to float32, the largest, with its expanded scales."""
    largest = max(
        spec.vocab * spec.hidden,
        spec.heads * spec.head_dim * spec.q_lora,
        spec.hidden * spec.o_groups * spec.o_lora,
        spec.hidden * spec.intermediate,
    )
    return 2 * largest * FLOAT
