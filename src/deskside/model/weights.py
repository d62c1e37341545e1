"""Put the tensors of a checkpoint together into what the model is built from.

A packed matrix is two tensors in the checkpoint and one object here; the experts of a layer become
three views of its bank. Nothing is decoded.
"""

from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import Cut, Progress, stream
from deskside.errors import CheckpointError
from deskside.experts.bank import Banks
from deskside.experts.memory import HostMemory
from deskside.formats.packed import Format, Packed
from deskside.layout.names import TensorSpec
from deskside.ops.linear import Weight

__all__ = ["bank_ranges", "load"]


def load(
    checkpoint: Checkpoint,
    wanted: Callable[[TensorSpec], bool] | None = None,
    progress: Progress | None = None,
    *,
    memory: HostMemory | None = None,
    cut: Cut | None = None,
) -> dict[str, Weight]:
    """Read a checkpoint's weights by name, routed experts straight into their banks.

    Args:
        checkpoint: where they are.
        wanted: which of them; all without it.
        progress: is told bytes read and bytes to read in all.
        memory: how the banks' memory is taken.
        cut: the rank's part of every tensor; the whole without it.

    Raises:
        CheckpointError: as `stream`, or a hash table names an expert that is not there.
    """
    cut = cut or Cut()
    wished = [e.tensor for e in checkpoint.entries() if not wanted or wanted(e.tensor)]
    banks = Banks(wished, memory, cut.ranks)
    loaded = stream(checkpoint, wanted, progress, room=banks.room, cut=cut)
    rest = ((spec.name, tensor) for spec, tensor in loaded if not Banks.holds(spec))
    weights = {**_assemble(rest), **banks.packed()}
    for name, table in weights.items():
        if name.endswith(".tid2eid"):
            assert isinstance(table, Tensor)
            _check_table(table, checkpoint.spec.experts, name)
    return weights


def bank_ranges(weights: Mapping[str, Weight]) -> list[tuple[int, int]]:
    """Return first address and end of every part of the banks."""
    parts = (
        part
        for name, weight in weights.items()
        if isinstance(weight, Packed) and weight.format is Format.MXFP4 and ".experts." in name
        for part in (weight.codes, weight.scales)
    )
    return [(part.data_ptr(), part.data_ptr() + part.nbytes) for part in parts]


def _check_table(table: Tensor, experts: int, name: str) -> None:
    """Refuse a routing table that names an expert which is not there."""
    for wrong in table[(table < 0) | (table >= experts)].tolist():
        raise CheckpointError(
            f"tensor {name}: names expert {wrong} of {experts}; the file is damaged, "
            "download it again"
        )


def _assemble(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Weight]:
    """Join codes and scales of FP8 matrices."""
    weights: dict[str, Weight] = {}
    scales: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if name.endswith(".scale"):
            scales[name.removesuffix(".scale") + ".weight"] = tensor
        else:
            weights[name] = tensor
    for name, scale in scales.items():
        codes = weights[name]
        assert isinstance(codes, Tensor)
        weights[name] = Packed(codes, scale, Format.FP8)
    return weights
