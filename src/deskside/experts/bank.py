"""Banks: all routed experts of a layer in one packed tensor, the checkpoint's own bytes in place.

An expert's codes and scales are copied once, to their place in the bank, and never repacked.
"""

import re

import torch
from torch import Tensor

from deskside.formats.packed import Format, Packed

__all__ = ["Banks"]

EXPERT = re.compile(r"^(.+\.experts)\.(\d+)\.(w[123])\.(weight|scale)$")


class Banks:
    """Fills banks from a stream of single experts."""

    def __init__(self, experts: int) -> None:
        self._experts = experts
        self._parts: dict[tuple[str, str], Tensor] = {}

    def put(self, name: str, tensor: Tensor) -> bool:
        """Copy an expert's tensor to its place; False when the name is not an expert's."""
        match = EXPERT.match(name)
        if match is None:
            return False
        stem, expert, matrix, part = match.groups()
        key = (f"{stem}.{matrix}", part)
        if key not in self._parts:
            self._parts[key] = torch.empty((self._experts, *tensor.shape), dtype=tensor.dtype)
        self._parts[key][int(expert)] = tensor
        return True

    def packed(self) -> dict[str, Packed]:
        """Return the banks by name, such as `layers.0.ffn.experts.w1`."""
        names = sorted({name for name, _ in self._parts})
        return {
            name: Packed(self._parts[name, "weight"], self._parts[name, "scale"], Format.MXFP4)
            for name in names
        }
