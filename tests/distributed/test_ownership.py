"""What a rank holds: its slices in memory of their own, all of the model between the ranks."""

from collections import defaultdict

import pytest
import torch
from torch import Tensor

from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import Cut
from deskside.formats.packed import Packed
from deskside.layout.folder import BUILTIN
from deskside.layout.names import tensors
from deskside.model.weights import load
from deskside.ops.linear import Weight
from deskside.planning.components import components_of
from tests.flash import flash

MINI = BUILTIN / "deskside-mini"
BANK_SLACK = 2 * 1024**2 + 6 * 4096
"""A bank starts at a huge page, and its six parts at whole pages."""


def parts(weights: dict[str, Weight]) -> dict[str, Tensor]:
    """Return every tensor by name; codes and scales apart."""
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if isinstance(weight, Packed):
            found[f"{name}.codes"], found[f"{name}.scales"] = weight.codes, weight.scales
        else:
            found[name] = weight
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_rank_holds_its_slices_and_no_byte_more(ranks: int) -> None:
    checkpoint = Checkpoint.open(MINI)
    planned = sum(one.rank for one in components_of(checkpoint.spec, ranks, drafter=True))
    whole = parts(load(checkpoint))
    held = [parts(load(checkpoint, cut=Cut(rank, ranks))) for rank in range(ranks)]
    for own in held:
        storages: dict[int, list[Tensor]] = defaultdict(list)
        for tensor in own.values():
            storages[tensor.untyped_storage().data_ptr()].append(tensor)
        for held_there in storages.values():
            size = held_there[0].untyped_storage().nbytes()
            used = sum(t.nbytes for t in held_there)
            assert used <= size <= used + (BANK_SLACK if len(held_there) == 6 else 0)
            assert len(held_there) in (1, 6), "one tensor, or the six parts of a bank"
        assert sum(tensor.nbytes for tensor in own.values()) == planned
    for name, tensor in whole.items():
        slices = [own[name] for own in held]
        assert joined(slices, tensor.shape).equal(tensor), name


@pytest.mark.parametrize(
    ("ranks", "asked"),
    [(1, 166_878_536_440), (2, 222_689_296_368), (4, 334_310_816_224)],
)
def test_what_ranks_ask_for_in_all_of_the_real_model(ranks: int, asked: int) -> None:
    """Columns are read whole by every rank; whoever reads first leaves them in the cache."""
    cuts = [Cut(rank, ranks) for rank in range(ranks)]
    assert sum(cut.bytes_read(one) for one in tensors(flash()) for cut in cuts) == asked


def joined(slices: list[Tensor], shape: torch.Size) -> Tensor:
    """Put slices together along the axis on which they are shorter than the whole."""
    for axis, (part, all_of_it) in enumerate(zip(slices[0].shape, shape, strict=True)):
        if part != all_of_it:
            return torch.cat(slices, dim=axis)
    assert all(one.equal(slices[0]) for one in slices)
    return slices[0]


def test_what_every_rank_holds_whole() -> None:
    spec = Checkpoint.open(MINI).spec
    kept = {one.component for one in components_of(spec, 4, drafter=True) if not one.split}
    assert {one.name for one in kept} == {
        "ATTENTION_WHOLE",
        "COMPRESSORS",
        "INDEXER",
        "GATES",
        "HYPER",
        "NORMS",
        "MTP_MAIN_PROJ",
        "MTP_REST",
    }
