"""A damaged encoder file in a whole checkpoint: one line before anything is served, or no harm."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deskside.checkpoint.index import Checkpoint
from deskside.errors import CheckpointError
from deskside.layout.folder import BUILTIN
from deskside.text.chat import ChatEncoder
from deskside.text.fixed import EFFORTS, FILE, FixedTexts
from deskside.text.tokenizer import Tokenizer
from tests.faults.test_checkpoint_corrupt import error_form, good

__all__ = ["good"]

MINI = BUILTIN / "deskside-mini"


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "model")
    shutil.copytree(MINI / FILE.parent, tmp_path / "model" / FILE.parent)
    return tmp_path / "model"


def test_a_folder_with_an_encoder_file_is_a_checkpoint(folder: Path, good: Path) -> None:
    assert Checkpoint.open(folder).spec == Checkpoint.open(good).spec
    assert FixedTexts.open(folder).efforts == FixedTexts.open(MINI).efforts


def test_the_encoder_file_is_judged_with_the_chat_format(folder: Path) -> None:
    """Whoever serves chat opens it before a weight is read; raw completions do not need it."""
    (folder / FILE).write_text("(")
    tokenizer = Tokenizer.open(MINI)
    with pytest.raises(CheckpointError, match=r"encoding_dsv4\.py: is not Python"):
        ChatEncoder.open(folder, tokenizer)
    Checkpoint.open(folder)


def mutations(source: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield damages that downloads and disks make, and that a program may have."""
    for length in range(0, len(source), 7):
        yield f"cut at {length}", source[:length]
    draw = random.Random(11)
    for _ in range(200):
        at = draw.randrange(len(source))
        flipped = source[at] ^ 1 << draw.randrange(8)
        yield f"flip at {at}", source[:at] + bytes([flipped]) + source[at + 1 :]
    for _ in range(50):
        at, size = draw.randrange(len(source)), draw.randrange(1, 600)
        yield f"zeros at {at}", source[:at] + bytes(size) + source[at + size :]
    lines = source.splitlines(keepends=True)
    for n in range(len(lines)):
        yield f"line {n} lost", b"".join(lines[:n] + lines[n + 1 :])
        yield f"line {n} twice", b"".join(lines[: n + 1] + lines[n:])
    for byte in (b"\0", b"\xff", b"\r", b"\x1b[2J", "\u2028".encode()):
        yield f"{byte!r} behind", source + byte
        yield f"{byte!r} before", byte + source


def test_every_damage_is_one_line_or_leaves_texts(folder: Path) -> None:
    path = folder / FILE
    source = path.read_bytes()
    refused = count = 0
    for label, changed in mutations(source):
        path.write_bytes(changed)
        message = outcome(folder)
        count += 1
        refused += message is not None
        assert message is None or (error_form(message) and str(path) in message), label
    assert count >= 400
    assert refused > 150


def outcome(folder: Path) -> str | None:
    """The message of the refusal, or None where plain texts or no texts at all are left."""
    try:
        texts = FixedTexts.open(folder)
    except CheckpointError as error:
        return str(error)
    assert texts.efforts == {"low": ""} or texts.default in texts.efforts
    if texts.efforts == {"low": ""}:
        assert EFFORTS in texts.lack
    return None
