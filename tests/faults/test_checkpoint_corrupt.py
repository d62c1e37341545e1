"""A corpus of damaged checkpoints: each is refused in one line before any weight is read."""

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deskside.checkpoint.index import Checkpoint
from deskside.errors import CheckpointError
from tests.miniature import write_miniature

INDEX = "model.safetensors.index.json"
Header = dict[str, Any]
Mutation = tuple[str, Callable[[Path], None]]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    write_miniature(
        folder,
        drafter=True,
        ratios=(0, 4, 128),
        hidden=64,
        heads=2,
        head_dim=32,
        rope_dim=8,
        q_lora=32,
        o_lora=16,
        index_heads=4,
        index_dim=16,
        experts=2,
        intermediate=32,
        vocab=64,
    )
    return folder


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def refused(folder: Path, label: str, *words: str) -> str:
    """Open a damaged folder; return the message after checking its form."""
    started = time.monotonic()
    try:
        Checkpoint.open(folder)
    except CheckpointError as error:
        message = str(error)
    else:
        pytest.fail(f"loaded silently: {label}")
    assert time.monotonic() - started < 2
    assert error_form(message), f"{label}: {message}"
    for word in words:
        assert word in message, f"{label}: {word!r} not in {message!r}"
    return message


def error_form(message: str) -> bool:
    return message.isprintable() and len(message) < 700 and ("; " in message or ": " in message)


def split(path: Path) -> tuple[Header, bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(path: Path, header: Header | str, payload: bytes) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + payload)


def cuts(path: Path) -> Iterator[Mutation]:
    """Truncate at every interesting place, or append."""
    size = path.stat().st_size
    base = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    for length in (0, 1, 7, 8, 9, base // 2, base - 1, base, (base + size) // 2, size - 1):
        yield f"cut at {length}", lambda p, n=length: os.truncate(p, n)
    for extra in (1, 8, 4096):

        def append(p: Path, n: int = extra) -> None:
            p.write_bytes(p.read_bytes() + bytes(n))

        yield f"append {extra}", append


def lengths(path: Path) -> Iterator[Mutation]:
    """Replace the 8 bytes of header length."""
    true = int.from_bytes(path.read_bytes()[:8], "little")
    wrong = [0, 1, 2, true - 1, true + 1, true + 8, 2 * true, path.stat().st_size]
    for length in (*wrong, 100_000_001, 2**31, 2**63, 2**64 - 1):

        def replace(p: Path, n: int = length) -> None:
            p.write_bytes(n.to_bytes(8, "little") + p.read_bytes()[8:])

        yield f"length {length}", replace


def fields(name: str, entry: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | Any]]:
    """Yield wrong values for one header entry."""
    begin, end = entry["data_offsets"]
    shape = entry["shape"]
    for dtype in ("BF16", "F32", "I64", "I8", "U8", "F8_E4M3", "F8_E8M0", "F4", "", None, 7):
        if dtype != entry["dtype"]:
            yield f"{name} dtype {dtype}", entry | {"dtype": dtype}
    wrong: list[Any] = [
        [],
        [0],
        [*shape, 1],
        [*shape, 2],
        [s + 1 for s in shape],
        [-s for s in shape],
        [float(s) for s in shape],
        [str(s) for s in shape],
        [True] * len(shape),
        [2**40, 2**40],
        [10**30],
        [2] * 1000,
        None,
        "64",
        {"0": shape},
    ]
    if len(shape) == 2 and shape[0] != shape[1]:
        wrong.append(shape[::-1])
    yield from ((f"{name} shape {s!r:.30}", entry | {"shape": s}) for s in wrong)
    offsets: list[Any] = [
        [begin + 1, end + 1],
        [begin, end + 1],
        [begin, end - 1],
        [begin + 1, end],
        [end, begin],
        [begin - 1, end - 1],
        [-1, end],
        [2**62, 2**62 + end - begin],
        [2**63, 2**63 + end - begin],
        [10**400, 10**400 + 1],
        [0, 0],
        [begin],
        [begin, end, end],
        [float(begin), float(end)],
        [str(begin), str(end)],
        None,
        "0",
    ]
    yield from ((f"{name} offsets {o!r:.30}", entry | {"data_offsets": o}) for o in offsets)
    yield f"{name} null", None
    yield f"{name} list", [1]
    yield f"{name} extra field", entry | {"mmap": True}
    for field in entry:
        yield f"{name} without {field}", {k: v for k, v in entry.items() if k != field}


def test_cut_lengthened_and_mislabelled_shards(good: Path, tmp_path: Path) -> None:
    count = 0
    for number, original in enumerate(shards(good)):
        folder = tmp_path / str(number)
        shutil.copytree(good, folder)
        path = folder / original.name
        for label, mutate in (*cuts(original), *lengths(original)):
            shutil.copyfile(original, path)
            mutate(path)
            refused(folder, f"{path.name} {label}", path.name, "download it again")
            count += 1
    assert count >= 200


@pytest.mark.parametrize("shard", [0, 2, 3, 5])
def test_wrong_header_entries(good: Path, tmp_path: Path, shard: int) -> None:
    shutil.copytree(good, tmp_path / "bad")
    original = shards(good)[shard]
    path = tmp_path / "bad" / original.name
    header, payload = split(original)
    names = [name for name in header if name != "__metadata__"]
    for name in {names[0], names[len(names) // 2], names[-1]}:
        for label, value in fields(name, header[name]):
            join(path, header | {name: value}, payload)
            refused(path.parent, label, path.name)
    for name in (names[0], names[-1]):
        without = {k: v for k, v in header.items() if k != name}
        join(path, without, payload)
        refused(path.parent, f"no {name}", path.name)
        join(path, without | {f"{name}x": header[name]}, payload)
        refused(path.parent, f"renamed {name}", path.name, name)
    begin = f'{{"{names[0]}":{json.dumps(header[names[0]])},'
    join(path, begin + json.dumps(header)[1:], payload)
    refused(path.parent, "duplicate key", path.name, names[0], "twice")


def test_overlaps_and_gaps_are_named(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "bad")
    original = shards(good)[1]
    path = tmp_path / "bad" / original.name
    header, payload = split(original)
    names = [name for name in header if name != "__metadata__"]
    first, second = header[names[0]], header[names[1]]
    same = first["data_offsets"]
    twins = "layers.0.hc_attn_fn", "layers.0.hc_ffn_fn"
    join(path, header | {twins[1]: header[twins[0]]}, payload)
    refused(path.parent, "same bytes", path.name, "overlap", *twins)
    moved = {
        name: entry | {"data_offsets": [p + 8 for p in entry["data_offsets"]]}
        for name, entry in header.items()
        if name != "__metadata__"
    }
    join(path, moved, bytes(8) + payload)
    refused(path.parent, "gap before all", path.name, names[0], "gap of 8 bytes")
    join(path, moved | {names[0]: first}, payload[: same[1]] + bytes(8) + payload[same[1] :])
    refused(path.parent, "gap between", path.name, names[1], "gap of 8 bytes")
    assert second["data_offsets"][0] == same[1]
    join(path, {"__metadata__": {}}, b"")
    refused(path.parent, "empty", path.name)
    for text in ("[]", "null", "{", '{"a":NaN}', "\x00" * 64, "{}" * 4, '{"__metadata__":3}'):
        join(path, text, payload)
        refused(path.parent, text, path.name, "header")
    join(path, "[" * 100_000, payload)
    refused(path.parent, "deep", path.name)
    path.write_bytes((12).to_bytes(8, "little") + b'{"\xff\xfe": 1}' + payload)
    refused(path.parent, "not UTF-8", path.name)


def test_any_flipped_header_byte_is_refused_or_harmless(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "bad")
    whole = Checkpoint.open(good)
    places = {e.tensor.name: e.offset for e in whole.entries()}
    draw = random.Random(7)
    caught = 0
    for _ in range(300):
        original = draw.choice(shards(good))
        data = bytearray(original.read_bytes())
        at = draw.randrange(8 + int.from_bytes(data[:8], "little"))
        data[at] ^= 1 << draw.randrange(8)
        path = tmp_path / "bad" / original.name
        path.write_bytes(data)
        message = outcome(path.parent, places)
        caught += message is not None
        assert message is None or error_form(message)
        shutil.copyfile(original, path)
    assert caught > 270


def outcome(folder: Path, places: dict[str, int]) -> str | None:
    """The message of the refusal, or None where nothing that matters was changed."""
    try:
        found = Checkpoint.open(folder)
    except CheckpointError as error:
        return str(error)
    # The flip hit a letter of the free metadata, or of the padding.
    assert {e.tensor.name: e.offset for e in found.entries()} == places
    return None


def test_a_missing_shard_and_things_that_are_no_files(good: Path, tmp_path: Path) -> None:
    for number, original in enumerate(shards(good)):
        folder = tmp_path / str(number)
        shutil.copytree(good, folder)
        path = folder / original.name
        first = next(k for k in split(original)[0] if k != "__metadata__")
        unit = first.split(".")[0]
        path.unlink()
        refused(folder, "missing", path.name, "tensor", unit, "missing")
        path.mkdir()
        refused(folder, "a directory", path.name)
        path.rmdir()
        os.mkfifo(path)
        refused(folder, "a pipe", path.name, "regular")
        path.unlink()
        path.symlink_to(path.name)
        refused(folder, "a loop", path.name)
        path.unlink()
        path.symlink_to(original)
        refused(folder, "a link out", path.name, "outside the folder")
        path.unlink()
        shutil.copyfile(original, folder / "real.safetensors")
        path.symlink_to("real.safetensors")
        Checkpoint.open(folder)  # a link that stays inside is well
