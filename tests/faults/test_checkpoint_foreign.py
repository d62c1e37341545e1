"""Indexes that lie, older revisions, other formats, pickles and NaN scales."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import stream
from deskside.errors import CheckpointError
from tests.faults.test_checkpoint_corrupt import INDEX, good, refused, shards, split
from tests.miniature import read_floats

__all__ = ["good"]

Map = dict[str, Any]


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "bad")
    return tmp_path / "bad"


def edit(path: Path, change: Callable[[Map], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "word"),
    [
        ("../x.safetensors", "outside the folder"),
        ("/etc/passwd", "outside the folder"),
        ("..", "outside the folder"),
        (".", "outside the folder"),
        ("", "outside the folder"),
        ("sub/model.safetensors", "outside the folder"),
        ("..\\x.safetensors", "outside the folder"),
        ("a\0b.safetensors", "outside the folder"),
        ("a\nb.safetensors", "outside the folder"),
        ("\ud800.safetensors", "outside the folder"),
        ("pytorch_model.bin", "no safetensors file"),
        ("model.pt", "no safetensors file"),
        ("x" * 5000 + ".safetensors", "outside the folder"),
        ("nowhere.safetensors", "missing"),
        (None, "must be a name"),
        (3, "must be a name"),
        (["a.safetensors"], "must be a name"),
    ],
)
def test_an_index_that_points_elsewhere(folder: Path, file: Any, word: str) -> None:
    name = "layers.1.attn.wq_a.weight"
    edit(folder / INDEX, lambda index: index["weight_map"].update({name: file}))
    refused(folder, repr(file)[:40], word, name)


def test_an_index_that_disagrees_with_the_shards(folder: Path) -> None:
    name, first = "layers.1.attn.wq_a.weight", shards(folder)[0].name
    pristine = (folder / INDEX).read_text()

    def case(change: Callable[[Map], None], *words: str) -> None:
        (folder / INDEX).write_text(pristine)
        edit(folder / INDEX, lambda index: change(index["weight_map"]))
        refused(folder, words[0], *words)

    case(lambda m: m.update({name: first}), first, name, "is missing")
    case(lambda m: m.pop(name), INDEX, name, "is missing")
    case(lambda m: m.update({"layers.1.attn.bias": first}), INDEX, "layers.1.attn.bias", "unknown")
    case(lambda m: m.update({"\x1b[2J\ud800": first}), INDEX, "unknown")
    case(lambda m: m.clear(), INDEX, "weight_map")
    for text in ("", "[]", "{", '{"weight_map": []}', '{"weight_map": {"a": "b", "a": "c"}}'):
        (folder / INDEX).write_text(text)
        refused(folder, text, INDEX)
    (folder / INDEX).write_bytes(b"\xff\xfe{}")
    refused(folder, "not UTF-8", INDEX)
    (folder / INDEX).unlink()
    refused(folder, "no index", INDEX, "shards but no index")
    for name in ("elsewhere.json", "config.json"):
        (folder / INDEX).write_text(pristine)
        outside = folder.parent / name
        source = folder / (INDEX if name == "elsewhere.json" else name)
        shutil.move(source, outside)
        source.symlink_to(outside)
        refused(folder, "link", source.name, "outside the folder")


def test_a_scale_that_is_off_by_one_block(folder: Path) -> None:
    """An index and a config that agree, and a shard whose scale has one block row less."""
    edit(folder / "config.json", lambda config: config.update(q_lora_rank=160))
    message = refused(folder, "q_lora", ".safetensors", "need")
    assert "[160" in message
    edit(folder / "config.json", lambda config: config.update(q_lora_rank=32, hidden_size=96))
    refused(folder, "hidden", ".safetensors", "need")


def test_older_revisions_are_named(folder: Path) -> None:
    first = shards(folder)[0].name
    for name in ("e_proj.weight", "h_proj.scale", "enorm.weight", "hnorm.weight"):
        edit(folder / INDEX, lambda i, n=name: i["weight_map"].update({f"mtp.0.{n}": first}))
        refused(folder, name, INDEX, f"mtp.0.{name}", "April/June", "0731")
        edit(folder / INDEX, lambda i, n=name: i["weight_map"].pop(f"mtp.0.{n}"))
    Checkpoint.open(folder)

    def forget(config: Map) -> None:
        for name in [key for key in config if key.startswith("dspark")]:
            del config[name]

    edit(folder / "config.json", forget)
    refused(folder, "drafter without config", INDEX, "mtp.0.", "unknown")


def test_other_formats_are_named(folder: Path) -> None:
    first = shards(folder)[0].name
    for name, word in (
        ("layers.0.ffn.experts.0.w1.weight_scale_2", "NVFP4"),
        ("layers.0.ffn.experts.0.w1.input_scale", "NVFP4"),
        ("model.layers.0.self_attn.q_a_proj.weight", "converted"),
        ("layers.0.attn.wq_a.weight_scale_inv", "converted"),
    ):
        edit(folder / INDEX, lambda i, n=name: i["weight_map"].update({n: first}))
        refused(folder, name, INDEX, name, word)
        edit(folder / INDEX, lambda i, n=name: i["weight_map"].pop(n))
    for change in (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"config_groups": {"0": {"format": "nvfp4-pack-quantized"}}},
    ):
        edit(folder / "config.json", lambda c, x=change: c["quantization_config"].update(x))
        refused(folder, "declared", "config.json", "NVFP4", "MXFP4")


def test_only_pickles(folder: Path) -> None:
    for path in [*shards(folder), folder / INDEX]:
        path.unlink()
    refused(folder, "no weights", INDEX, "no weights there")
    for name in ("pytorch_model.bin", "model.pt", "model.pth", "weights.pkl"):
        (folder / name).write_bytes(b"cos\nsystem\n")
        refused(folder, name, name, "pickle", "never opened")
        (folder / name).unlink()
    (folder / "config.json").unlink()
    refused(folder, "nothing", "config.json", "missing")


def test_pickles_are_never_opened(folder: Path, tmp_path: Path) -> None:
    only = tmp_path / "only"
    only.mkdir()
    shutil.copy(folder / "config.json", only)
    edit(folder / "config.json", lambda c: c.update(auto_map={"AutoModel": "modeling.Evil"}))
    for place in (folder, only):
        for name in ("pytorch_model.bin", "model.pt", "tokenizer.pkl", "modeling.py"):
            (place / name).write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    code = f"""
import sys
from pathlib import Path
from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import stream
from deskside.errors import CheckpointError
bad = []
def watch(event, args):
    if event == "open" and str(args[0]).endswith((".bin", ".pt", ".pkl", "modeling.py")):
        bad.append(args[0])
    if event == "pickle.find_class":
        bad.append(event)
sys.addaudithook(watch)
list(stream(Checkpoint.open(Path({str(folder)!r}))))
try:
    Checkpoint.open(Path({str(only)!r}))
except CheckpointError as error:
    assert error.exit_code == 2
else:
    bad.append("opened")
sys.exit(str(bad) if bad else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["layers.0.ffn.experts.1.w2.scale", "layers.2.attn.wkv.scale", "mtp.0.main_proj.scale"]
)
def test_nan_scales_are_refused_while_loading(folder: Path, name: str) -> None:
    checkpoint = Checkpoint.open(folder)
    shard, entry = next(
        (s, e) for s in checkpoint.shards for e in s.entries if e.tensor.name == name
    )
    with shard.path.open("r+b") as file:
        file.seek(entry.offset)
        file.write(b"\xff")
    with pytest.raises(CheckpointError, match="255") as caught:
        list(stream(checkpoint))
    assert name in str(caught.value)
    assert shard.path.name in str(caught.value)
    list(stream(checkpoint, lambda spec: spec.name != name))


def test_a_file_that_shrinks_after_it_was_judged(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    last = checkpoint.shards[-1]
    with last.path.open("r+b") as file:
        file.truncate(last.entries[-1].offset + 1)
    with pytest.raises(CheckpointError, match="early") as caught:
        list(stream(checkpoint))
    assert last.entries[-1].tensor.name in str(caught.value)


def test_swapped_nibbles_change_the_numbers(folder: Path) -> None:
    """The one fault that no header can show; the order is pinned by this fixture."""
    name = "layers.0.ffn.experts.0.w1.weight"
    before = read_floats(folder)[name]
    path = next(p for p in shards(folder) if name in split(p)[0])
    header, payload = split(path)
    begin, end = header[name]["data_offsets"]
    base = path.stat().st_size - len(payload)
    swapped = bytes(b >> 4 | (b & 15) << 4 for b in payload[begin:end])
    with path.open("r+b") as file:
        file.seek(base + begin)
        file.write(swapped)
    after = read_floats(folder)[name]
    assert (after[:, 0::2] == before[:, 1::2]).all()
    assert (after[:, 1::2] == before[:, 0::2]).all()
