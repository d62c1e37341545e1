"""Banks: one allocation a layer, filled from the disk without a second copy, cut for ranks."""

import mmap
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import TORCH_TYPES, Cut, stream
from deskside.checkpoint.writer import write
from deskside.errors import CapacityError
from deskside.experts.bank import Banks
from deskside.experts.memory import HUGE_PAGE, HostMemory
from deskside.formats.packed import Packed
from deskside.kernels.pool import touch
from deskside.layout.names import TensorSpec
from deskside.model.weights import load
from tests.miniature import miniature_spec

MIB = 1024**2
PARTS = ("w1", "w2", "w3")


def write_random(folder: Path, **shape: int) -> Checkpoint:
    """Write a checkpoint of random bytes that no model will compute with."""
    draw = torch.Generator().manual_seed(0)

    def make(tensor: TensorSpec) -> torch.Tensor:
        values = torch.zeros(tensor.shape, dtype=TORCH_TYPES[tensor.dtype])
        if values.dtype is torch.uint8:
            values.random_(0, 255, generator=draw)  # 255 is no scale
        return values

    write(folder, miniature_spec(ratios=(0, 4), **shape), make)
    return Checkpoint.open(folder)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_random(tmp_path_factory.mktemp("random"), hidden=256, intermediate=256, experts=5)


def test_a_layer_is_one_allocation_of_the_stored_bytes(checkpoint: Checkpoint) -> None:
    weights = load(checkpoint)
    stored = dict(stream(checkpoint))
    by_name = {spec.name: tensor for spec, tensor in stored.items()}
    storages = set()
    for layer in range(2):
        stem = f"layers.{layer}.ffn.experts"
        tensors = []
        for part in PARTS:
            bank = weights[f"{stem}.{part}"]
            assert isinstance(bank, Packed)
            for expert in range(5):
                name = f"{stem}.{expert}.{part}"
                assert torch.equal(bank.codes[expert], by_name[f"{name}.weight"])
                assert torch.equal(bank.scales[expert], by_name[f"{name}.scale"])
            assert bank.codes.is_contiguous()
            assert bank.scales.is_contiguous()
            tensors += [bank.codes, bank.scales]
        assert all(tensor.data_ptr() % 4096 == 0 for tensor in tensors)
        (storage,) = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        first = min(tensor.data_ptr() for tensor in tensors)
        last = max(tensor.data_ptr() + tensor.nbytes for tensor in tensors)
        assert first % HUGE_PAGE == 0
        assert last - first < sum(tensor.nbytes for tensor in tensors) + 6 * 4096
        storages.add(storage)
    assert len(storages) == 2


def test_tensors_are_read_where_they_stay(checkpoint: Checkpoint) -> None:
    banks = Banks(entry.tensor for entry in checkpoint.entries())
    assert banks.nbytes == 0  # nothing is taken before it is needed
    places = {}
    for spec, tensor in stream(checkpoint, room=banks.room):
        if Banks.holds(spec):
            places[spec.name] = tensor.data_ptr()
        else:
            assert banks.room(spec) is None
    expert = banks.packed()["layers.1.ffn.experts.w2"].codes[3]
    assert places["layers.1.ffn.experts.3.w2.weight"] == expert.data_ptr()
    experts = sum(e.tensor.nbytes for e in checkpoint.entries() if Banks.holds(e.tensor))
    assert experts <= banks.nbytes <= experts + 2 * 6 * 4096


def bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def test_every_byte_is_read_once(checkpoint: Checkpoint) -> None:
    before = bytes_read()
    own = bytes_read() - before
    start = bytes_read()
    load(checkpoint)
    assert bytes_read() - start - own == checkpoint.nbytes


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_hold_their_parts_and_no_more(checkpoint: Checkpoint, ranks: int) -> None:
    whole = load(checkpoint)
    told: list[tuple[int, int]] = []
    for rank in range(ranks):
        mine = load(
            checkpoint,
            Banks.holds,
            lambda done, total: told.append((done, total)),
            cut=Cut(rank, ranks),
        )
        for name, part in mine.items():
            complete = whole[name]
            assert isinstance(complete, Packed)
            assert isinstance(part, Packed)
            cut = complete.shard("columns" if name.endswith("w2") else "rows", rank, ranks)
            assert torch.equal(part.codes, cut.codes)
            assert torch.equal(part.scales, cut.scales)
            held = part.codes.untyped_storage().nbytes()
            layer = sum(
                w.nbytes for n, w in whole.items() if n[:8] == name[:8] and ".experts.w" in n
            )
            assert held < layer // ranks + HUGE_PAGE + 6 * 4096
    assert told[-1][0] == told[-1][1]


def vm_flags(address: int) -> list[str]:
    """Return the kernel's flags of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()
        if "-" in head[0] and not head[0].endswith(":"):
            first, last = (int(word, 16) for word in head[0].split("-"))
            inside = first <= address < last
        elif inside and head[0] == "VmFlags:":
            return head[1:]
    raise AssertionError


@pytest.mark.parametrize("huge", [True, False])
def test_huge_pages_are_asked_for(huge: bool) -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists():
        pytest.skip("this kernel has none")
    memory = HostMemory(huge_pages=huge).allocate(3 * MIB)
    assert ("hg" in vm_flags(memory.data_ptr())) == huge
    assert memory.nbytes == 3 * MIB
    assert not memory.any()  # new pages


@pytest.mark.native
def test_memory_is_touched_then_pinned_once_and_whole() -> None:
    pinned: list[torch.Tensor] = []
    nbytes = 9 * MIB + 12_345
    memory = HostMemory(huge_pages=False, touch=touch, pin=pinned.append).allocate(nbytes)
    assert [part.nbytes for part in pinned] == [nbytes]
    assert pinned[0].data_ptr() == memory.data_ptr()
    assert resident(memory) == -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    assert resident(HostMemory(huge_pages=False).allocate(MIB)) == 0


def resident(memory: torch.Tensor) -> int:
    """Return the bytes of whole pages of `memory` that exist."""
    pages = -(-memory.nbytes // mmap.PAGESIZE)
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(memory.data_ptr() // mmap.PAGESIZE * 8)
        entries = torch.frombuffer(bytearray(file.read(8 * pages)), dtype=torch.int64)
    return int((entries < 0).sum()) * mmap.PAGESIZE  # the highest bit: present


def test_memory_that_the_system_refuses() -> None:
    with pytest.raises(CapacityError, match=r"refuses \d+ bytes for a bank"):
        HostMemory().allocate(1 << 60)


PEAK = """
import sys
from pathlib import Path
from deskside.checkpoint.index import Checkpoint
from deskside.model.weights import load

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

checkpoint = Checkpoint.open(Path(sys.argv[1]))
before = status("VmRSS:")
weights = load(checkpoint)
print(status("VmHWM:") - before, checkpoint.nbytes)
"""


def peak_and_stored(folder: Path) -> Iterator[int]:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder)], capture_output=True, text=True, check=True
    )
    return map(int, done.stdout.split())


def test_a_load_takes_little_more_than_the_weights(tmp_path: Path) -> None:
    stored = write_random(tmp_path, hidden=512, intermediate=512, experts=96).nbytes
    assert stored > 80 * MIB
    peak, told = peak_and_stored(tmp_path)
    assert told == stored
    assert stored <= peak <= stored + 64 * MIB


@pytest.mark.slow
def test_a_large_load_takes_little_more_than_the_weights(tmp_path: Path) -> None:
    stored = write_random(tmp_path, hidden=1024, intermediate=1024, experts=192).nbytes
    assert stored > 600 * MIB
    peak, _ = peak_and_stored(tmp_path)
    assert stored <= peak <= stored + 256 * MIB
