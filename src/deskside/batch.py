"""One forward's inputs: ragged rows of any number of sequences, and where their state lies.

Everything here is known to the host before the forward starts. Index tensors are inputs like token
ids, so a captured forward replays with other values in the same shapes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Batch", "Emissions", "Kinds"]


@dataclass(frozen=True, slots=True)
class Emissions:
    """Compressed entries that become complete in this forward, for one compression ratio.

    Source rows count first the carry rings of the batch's spans, one after the other, then the
    batch's own rows.
    """

    source: Tensor
    """[entries, rows of an entry] int64."""
    absent: Tensor
    """[entries, rows of an entry] bool: before the first token."""
    target: Tensor
    """[entries] int64, row of the pool."""
    positions: Tensor
    """[entries] int64, where the entry's rotary position is."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """Which rows are of the prompt and which were generated, from the anchor on.

    Where an operation has two numeric paths, a row's kind chooses, never how many rows there are.
    The lengths of both lists are known to the host.
    """

    prompt: Tensor
    """[p] int64, ascending."""
    generated: Tensor
    """[g] int64, ascending; p + g rows."""

    @staticmethod
    def of(generated: NDArray[np.bool_]) -> "Kinds":
        """Return the kinds of rows, given [R] whether each was generated."""
        prompt, own = (part.nonzero()[0] for part in (~generated, generated))
        return Kinds(torch.from_numpy(prompt), torch.from_numpy(own))


@dataclass(frozen=True, slots=True)
class Batch:
    """R rows of S spans."""

    ids: Tensor
    """[R] int64 token ids."""
    positions: Tensor
    """[R] int64 absolute positions."""
    span: Tensor
    """[R] int64, the span a row belongs to."""
    kinds: Kinds
    """Prompt rows and generated rows."""
    slots: Tensor
    """[S] int64, ring slot of each span."""
    window_index: Tensor
    """[R, window] int32 into the spans' rings followed by the batch's own rows; -1 absent."""
    page_table: Tensor
    """[S, pages] int64, padded with the scratch page."""
    emissions: Mapping[int, Emissions]
    """By ratio; a ratio without new entries is not there."""
    visible: Mapping[int, Tensor]
    """By ratio: [R] int64 entries a row sees."""
    most_visible: Mapping[int, int]
    """By ratio: the largest of `visible`, known to the host."""
    stage: Mapping[int, Tensor]
    """By ring length: [n] int64 rows to leave in the staging buffer, span after span."""
    logit_rows: Tensor
    """[n] int64, rows whose logits are wanted."""
