"""Put a stream of stored tensors together into what the model is built from.

A packed matrix is two tensors in the checkpoint and one object here; the experts of a layer become
three banks. Nothing is decoded.
"""

from collections.abc import Iterable

from torch import Tensor

from deskside.experts.bank import Banks
from deskside.formats.packed import Format, Packed
from deskside.ops.linear import Weight
from deskside.spec import ModelSpec

__all__ = ["assemble"]


def assemble(stream: Iterable[tuple[str, Tensor]], spec: ModelSpec) -> dict[str, Weight]:
    """Return weights by checkpoint name.

    Args:
        stream: name and tensor of every stored tensor that is wanted; codes and scales are uint8.
        spec: the model's shapes.
    """
    banks = Banks(spec.experts)
    weights: dict[str, Weight] = {}
    scales: dict[str, Tensor] = {}
    for name, tensor in stream:
        if banks.put(name, tensor):
            continue
        if name.endswith(".scale"):
            scales[name.removesuffix(".scale") + ".weight"] = tensor
        else:
            weights[name] = tensor
    for name, scale in scales.items():
        codes = weights[name]
        assert isinstance(codes, Tensor)
        weights[name] = Packed(codes, scale, Format.FP8)
    return {**weights, **banks.packed()}
