"""Tiles: the rule that makes a row's bits independent of its neighbours, and of other ranks.

A plain torch body may round a row differently when the number of rows changes, because libraries
choose their kernels by shape. Every plain body therefore runs on tiles of exactly 16 rows, the last
one padded with zeros, so that it only ever sees one shape. What ranks cut, output columns and
heads, is tiled in the same way.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "COLUMN_TILE",
    "HEAD_TILE",
    "KEY_TILE",
    "ROW_TILE",
    "pairwise_sum",
    "rowwise",
    "tiles",
]

ROW_TILE = 16
"""Rows in one tile of every row-wise body."""

COLUMN_TILE = 128
"""Output columns in one tile of a matrix product."""

HEAD_TILE = 8
"""Heads in one tile of attention."""

KEY_TILE = 128
"""Keys in one tile of attention and index scores, counted from the first key of a row."""


def rowwise(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Run a body on tiles of 16 rows of the arguments in `names`.

    The named arguments are tensors (or None) with rows in their first dimension; all others are
    shared by every tile. The body returns a tensor or a tuple of tensors with rows first.
    """

    def decorate(body: Callable[P, R]) -> Callable[P, R]:
        run = cast("Callable[..., Any]", body)
        places = {name: i for i, name in enumerate(inspect.signature(body).parameters)}
        rowed = tuple(places[name] for name in names)

        @wraps(body)
        def tiled(*args: P.args, **kwargs: P.kwargs) -> R:
            assert not kwargs, "row-wise operations take their arguments by position"
            cut = [i for i in rowed if args[i] is not None]
            rows = args[cut[0]].shape[0]  # type: ignore[attr-defined]
            tile = list(args)
            parts = []
            for first in range(0, max(rows, 1), ROW_TILE):
                for i in cut:
                    tile[i] = _tile(args[i], first)  # type: ignore[arg-type]
                parts.append(run(*tile))
            return cast("R", _join(parts, rows))

        return tiled

    return decorate


def pairwise_sum(parts: list[Tensor]) -> Tensor:
    """Add tensors of one shape along a fixed binary tree: neighbours first."""
    while len(parts) > 1:
        pairs = [parts[i] + parts[i + 1] for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def tiles(value: Tensor, size: int) -> list[Tensor]:
    """Cut the first dimension into parts of one size, zeros at the end of the last one."""
    return [_tile(value, first, size) for first in range(0, max(value.shape[0], 1), size)]


def _tile(value: Tensor, first: int, size: int = ROW_TILE) -> Tensor:
    tile = value[first : first + size]
    missing = size - tile.shape[0]
    if missing == 0:
        return tile.contiguous()
    return pad(tile, (0, 0) * (tile.dim() - 1) + (0, missing))


def _join(parts: list[Any], rows: int) -> Any:
    if isinstance(parts[0], tuple):
        return tuple(_join(list(column), rows) for column in zip(*parts, strict=True))
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole[:rows]
