"""What the writer writes, the reader reads: every tensor once, into its own storage."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import TORCH_TYPES, stream
from deskside.checkpoint.writer import write
from deskside.errors import CheckpointError, InputError
from deskside.layout.names import TensorSpec, tensors, units
from tests.miniature import miniature_spec, read_floats, write_miniature

TINY = {
    "ratios": (0, 4, 128),
    "hidden": 64,
    "heads": 2,
    "head_dim": 32,
    "rope_dim": 8,
    "q_lora": 32,
    "o_lora": 16,
    "index_heads": 4,
    "index_dim": 16,
    "experts": 4,
    "intermediate": 32,
    "vocab": 64,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_miniature(path, drafter=True, **TINY)
    return path


def test_the_official_library_reads_the_same(folder: Path) -> None:
    raw = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            raw |= {name: file.get_tensor(name) for name in list(file.keys())}
    found = {spec.name: tensor for spec, tensor in stream(Checkpoint.open(folder))}
    assert found.keys() == raw.keys()
    for name, tensor in found.items():
        expected = raw[name]
        if tensor.dtype == torch.uint8:
            expected = expected.view(torch.uint8)
        assert torch.equal(tensor.view(torch.uint8), expected.contiguous().view(torch.uint8)), name


def test_each_tensor_has_its_type_shape_and_own_storage(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    seen = []
    for spec, tensor in stream(checkpoint):
        assert tensor.dtype == TORCH_TYPES[spec.dtype]
        assert tuple(tensor.shape) == spec.shape
        assert tensor.untyped_storage().nbytes() == spec.nbytes
        seen.append(spec.name)
    assert sorted(seen) == sorted(t.name for t in tensors(checkpoint.spec))
    assert seen == [entry.tensor.name for entry in checkpoint.entries()]


def test_every_byte_is_read_exactly_once(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)

    def bytes_read() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["rchar"])

    list(stream(checkpoint))  # imports and caches are warm now
    before = bytes_read()
    own = bytes_read() - before
    start = bytes_read()
    for _ in stream(checkpoint):
        pass
    assert bytes_read() - start - own == checkpoint.nbytes


def test_wanted_and_progress(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    calls = []
    got = list(
        stream(
            checkpoint,
            lambda spec: spec.unit == "layers.1",
            lambda done, total: calls.append((done, total)),
        )
    )
    assert {spec.unit for spec, _ in got} == {"layers.1"}
    total = sum(spec.nbytes for spec, _ in got)
    assert calls[-1] == (total, total)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert list(stream(checkpoint, lambda spec: False)) == []


def test_files_follow_the_published_layout(folder: Path) -> None:
    spec = Checkpoint.open(folder).spec
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    assert names == [f"model-{n:05}-of-00008.safetensors" for n in range(1, 9)]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors(spec))
    for number, unit in enumerate(units(spec), start=1):
        members = {t.name for t in tensors(spec) if t.unit == unit}
        file = f"model-{number:05}-of-00008.safetensors"
        assert {n for n, f in index["weight_map"].items() if f == file} == members


def test_equal_input_gives_equal_bytes(folder: Path, tmp_path: Path) -> None:
    def digest(path: Path) -> dict[str, str]:
        return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in path.iterdir()}

    write_miniature(tmp_path / "again", drafter=True, **TINY)
    assert digest(tmp_path / "again") == digest(folder)
    checkpoint = Checkpoint.open(folder)
    backwards = [(spec.name, tensor) for spec, tensor in stream(checkpoint)][::-1]
    write(tmp_path / "copy", checkpoint.config, iter(backwards))
    assert digest(tmp_path / "copy") == digest(folder)
    write_miniature(tmp_path / "other", seed=1, drafter=True, **TINY)
    assert digest(tmp_path / "other") != digest(folder)


@pytest.mark.parametrize("shard_bytes", [6_000, 20_000, 10**9])
def test_large_parts_are_split(tmp_path: Path, folder: Path, shard_bytes: int) -> None:
    write_miniature(tmp_path, drafter=True, shard_bytes=shard_bytes, **TINY)
    checkpoint = Checkpoint.open(tmp_path)
    for shard in checkpoint.shards:
        assert shard.path.stat().st_size <= shard_bytes or len(shard.entries) == 1
        for entry in shard.entries:  # aligned for readers that map files
            assert entry.offset % {"F32": 4, "BF16": 2, "I64": 8}.get(entry.tensor.dtype, 1) == 0
    mine, whole = read_floats(tmp_path), read_floats(folder)
    assert all(torch.equal(mine[name], whole[name]) for name in whole)


def test_the_writer_takes_only_what_belongs(tmp_path: Path) -> None:
    spec = miniature_spec(**TINY)

    def make(tensor: TensorSpec) -> torch.Tensor:
        return torch.zeros(tensor.shape, dtype=TORCH_TYPES[tensor.dtype])

    good = [(tensor.name, make(tensor)) for tensor in tensors(spec)]
    for case, (source, message) in {
        "missing": (good[:-1], f"{good[-1][0]} is missing"),
        "twice": ([*good, good[3]], f"{good[3][0]} is given twice"),
        "unknown": ([*good, ("layers.0.bias", good[0][1])], r"layers\.0\.bias is unknown"),
        "shape": ([(good[0][0], good[0][1][:-1]), *good[1:]], "need BF16"),
        "dtype": ([(good[0][0], good[0][1].float()), *good[1:]], "is torch.float32"),
    }.items():
        with pytest.raises(CheckpointError, match=message):
            write(tmp_path / case, spec, source)
        with pytest.raises(CheckpointError):  # what was half-written is no checkpoint
            Checkpoint.open(tmp_path / case)
    write(tmp_path / "good", spec, good)
    assert Checkpoint.open(tmp_path / "good").spec == spec
    with pytest.raises(InputError, match="already holds shards"):
        write(tmp_path / "good", spec, good)


def test_given_weights_are_stored(tmp_path: Path) -> None:
    weights = {
        "layers.0.attn.wq_a.weight": torch.linspace(-1, 1, 32 * 64).view(32, 64),
        "layers.1.ffn.experts.2.w2.weight": torch.eye(64, 32),
        "norm.weight": torch.full((64,), 0.5),
    }
    write_miniature(tmp_path, weights=weights, **TINY)
    found = read_floats(tmp_path)
    assert torch.equal(found["norm.weight"], weights["norm.weight"])
    expert = "layers.1.ffn.experts.2.w2.weight"
    assert torch.equal(found[expert], weights[expert])
    error = (found["layers.0.attn.wq_a.weight"] - weights["layers.0.attn.wq_a.weight"]).abs()
    assert 0 < error.max() <= 1 / 32
    table = found["layers.0.ffn.gate.tid2eid"]
    assert table.dtype == torch.int64
    assert all(len(set(row)) == 2 for row in table.tolist())
