"""Which experts lie in which slots of the device.

One pool of slots serves all layers, the drafter's too: a layer's step may need every expert of the
layer, which is a small part of all experts together, and slots go to the layers that use them most.
The least recently used expert leaves first. Moves no bytes.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from deskside.errors import CapacityError

__all__ = ["ExpertCache"]


class ExpertCache:
    """Slots by layer and expert. One step at a time."""

    def __init__(self, slots: int) -> None:
        self._count = slots
        self._free = deque(range(slots))
        self._order: OrderedDict[tuple[str, int], None] = OrderedDict()
        """Resident experts, the first to leave first."""
        self._slots: dict[str, dict[int, int]] = {}
        """The slots of each layer's resident experts."""

    def held(self, layer: str) -> Mapping[int, int]:
        """Return the slots of a layer's resident experts, as they are now."""
        return dict(self._slots.get(layer, {}))

    @contextmanager
    def step(
        self, layer: str, hits: Collection[int], fetches: Collection[int], *, recent: bool
    ) -> Iterator[dict[int, int]]:
        """Hold experts of a layer for one step; yields the slots that `fetches` are to be put in.

        Nobody of this step leaves in it. What is fetched counts as resident when the block ends
        well. After an exception the slots that were being filled are free, and all others hold what
        they held.

        Args:
            layer: name of the layer.
            hits: resident experts that are used.
            fetches: experts that are not resident.
            recent: whether this use keeps experts longer. Without it what is fetched is the first
                to leave again, and nobody else's turn changes: a prompt chunk needs nearly all
                experts once, and would push out those that generated rows come back to.

        Raises:
            CapacityError: fewer slots than the step needs.
        """
        if len(hits) + len(fetches) > self._count:
            raise CapacityError(
                f"{layer}: one step needs {len(hits) + len(fetches)} expert slots, have "
                f"{self._count}; use --expert-slots"
            )
        self._evict(len(fetches) - len(self._free), staying={(layer, e) for e in hits})
        slots = {expert: self._free.popleft() for expert in fetches}
        try:
            yield slots
        except BaseException:
            self._free.extendleft(reversed(slots.values()))
            raise
        self._slots.setdefault(layer, {}).update(slots)
        for expert in sorted(fetches, reverse=True):
            self._order[layer, expert] = None
            self._order.move_to_end((layer, expert), last=False)
        for expert in sorted([*hits, *fetches] if recent else ()):
            self._order.move_to_end((layer, expert))

    def _evict(self, count: int, staying: Collection[tuple[str, int]]) -> None:
        """Free the slots of the first `count` of those who may leave."""
        leaving = [key for key in self._order if key not in staying][: max(count, 0)]
        for layer, expert in leaving:
            del self._order[layer, expert]
            self._free.append(self._slots[layer].pop(expert))
