"""Banks: the routed experts of a layer in one allocation, the checkpoint's own bytes in place.

Owns the layout of that allocation and hands out the place of every expert's tensor, so that a
loader reads from the disk to where kernels will look. Nothing is repacked and nothing is kept
beside the bank. Each of the six parts (codes and scales of gate, up and down) holds its experts one
after the other, as the kernels count them.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from deskside.experts.memory import HostMemory
from deskside.formats.packed import Format, Packed
from deskside.layout.names import TensorSpec

__all__ = ["Banks"]

EXPERT = re.compile(r"^(.+\.experts)\.(\d+)\.(w[123])\.(weight|scale)$")
PAGE = 4096


@dataclass(frozen=True, slots=True)
class _Part:
    """One of a bank's six parts: [experts, rows, bytes] at an offset of whole pages."""

    offset: int
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)


class Banks:
    """The banks of all layers; a layer's memory is taken when the first of its tensors comes."""

    def __init__(
        self, tensors: Iterable[TensorSpec], memory: HostMemory | None = None, ranks: int = 1
    ) -> None:
        """Lay out the banks.

        Args:
            tensors: those that will be loaded; all but routed experts are ignored.
            memory: where a bank's memory comes from.
            ranks: how many ranks cut every expert along its intermediate dimension.
        """
        self._memory = memory or HostMemory()
        self._layouts = _layouts(tensors, ranks)
        self._banks: dict[str, Tensor] = {}
        self._parts: dict[str, dict[str, Tensor]] = {}

    @staticmethod
    def holds(tensor: TensorSpec) -> bool:
        """Whether a tensor belongs into a bank."""
        return EXPERT.match(tensor.name) is not None

    @property
    def nbytes(self) -> int:
        """Bytes of all banks that were allocated."""
        return sum(bank.nbytes for bank in self._banks.values())

    def room(self, tensor: TensorSpec) -> Tensor | None:
        """Return the place of an expert's tensor, uint8 of a rank's shape; None for any other."""
        match = EXPERT.match(tensor.name)
        if match is None:
            return None
        stem, expert, matrix, part = match.groups()
        if stem not in self._banks:
            self._allocate(stem)
        return self._parts[stem][f"{matrix}.{part}"][int(expert)]

    def packed(self) -> dict[str, Packed]:
        """Return the banks by name, such as `layers.0.ffn.experts.w1`: views of their memory."""
        return {
            f"{stem}.{matrix}": Packed(
                parts[f"{matrix}.weight"], parts[f"{matrix}.scale"], Format.MXFP4
            )
            for stem, parts in self._parts.items()
            for matrix in ("w1", "w2", "w3")
        }

    def _allocate(self, stem: str) -> None:
        layout = self._layouts[stem]
        bank = self._memory.allocate(max(p.offset + p.nbytes for p in layout.values()))
        self._banks[stem] = bank
        self._parts[stem] = {
            name: bank[part.offset : part.offset + part.nbytes].view(part.shape)
            for name, part in layout.items()
        }


def _layouts(tensors: Iterable[TensorSpec], ranks: int) -> dict[str, Mapping[str, _Part]]:
    """Lay out every bank that the tensors speak of."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    experts: dict[str, int] = {}
    for tensor in tensors:
        match = EXPERT.match(tensor.name)
        if match is not None:
            stem, expert, matrix, part = match.groups()
            shapes.setdefault(stem, {})[f"{matrix}.{part}"] = tensor.rank_shape(ranks)
            experts[stem] = max(experts.get(stem, 0), int(expert) + 1)
    return {stem: _lay_out(experts[stem], parts) for stem, parts in shapes.items()}


def _lay_out(experts: int, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, _Part]:
    found, offset = {}, 0
    for name, shape in sorted(shapes.items()):
        found[name] = _Part(offset, (experts, *shape))
        offset += -(-found[name].nbytes // PAGE) * PAGE
    return found
