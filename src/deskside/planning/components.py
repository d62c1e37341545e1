"""The bytes of each component of a model: in the checkpoint, of one rank, and held in memory.

Owns the sums that a plan is made of. Pure arithmetic over the layout's table.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from deskside.layout.names import Component, tensors
from deskside.spec import ModelSpec

__all__ = ["ComponentBytes", "components_of", "dense_bytes", "expert_bytes"]


@dataclass(frozen=True, slots=True)
class ComponentBytes:
    """Bytes of one component: in the checkpoint, of one rank's part, and held by one rank.

    Held differs from the rank's part only where a component is not loaded: no type is changed.
    """

    component: Component
    split: bool
    stored: int
    rank: int
    held: int


def components_of(spec: ModelSpec, ranks: int, drafter: bool) -> tuple[ComponentBytes, ...]:
    """Count the components of a model on a number of ranks, with or without holding the drafter.

    Raises:
        InputError: the ranks would cut a block.
    """
    stored: Counter[Component] = Counter()
    rank: Counter[Component] = Counter()
    split: set[Component] = set()
    for tensor in tensors(spec):
        stored[tensor.component] += tensor.nbytes
        rank[tensor.component] += tensor.rank_bytes(ranks)
        if tensor.axis is not None:
            split.add(tensor.component)
    return tuple(
        ComponentBytes(
            component,
            component in split,
            stored[component],
            rank[component],
            0 if component.drafter and not drafter else rank[component],
        )
        for component in Component
        if component in stored
    )


def expert_bytes(components: Sequence[ComponentBytes], spec: ModelSpec) -> int:
    """Return the bytes of one rank's part of one routed expert."""
    every = next(one.rank for one in components if one.component is Component.ROUTED_EXPERTS)
    return every // (spec.layers * spec.experts)


def dense_bytes(components: Sequence[ComponentBytes]) -> int:
    """Return the bytes of one rank's trunk that every token reads."""
    chosen = (Component.ROUTED_EXPERTS, Component.EMBED)
    return sum(
        one.held for one in components if one.component not in chosen and not one.component.drafter
    )
