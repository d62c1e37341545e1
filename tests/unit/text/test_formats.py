"""Formats of texts: what a validator refuses, no grammar admits."""

import json
import random
from typing import Any

import jsonschema_rs
import pytest

from deskside.text.call_grammar import calls_grammar
from deskside.text.formats import strict_formats
from deskside.text.grammar import Compiler, json_grammar
from deskside.text.tools import Tool
from tests.unit.text.test_guide import TOKENIZER

COMPILER = Compiler(TOKENIZER, TOKENIZER.vocab_size)
FORMATS = ("date", "time", "date-time", "duration", "ipv4", "ipv6", "uuid", "hostname")


def admits(schema: dict[str, Any], value: object) -> bool:
    matcher = COMPILER.begin(json_grammar(schema))
    ids = TOKENIZER.encode_plain(json.dumps(value))
    return all(map(matcher.take, ids)) and bool(matcher.allowed()[TOKENIZER.eos])


DAYS = [
    f"{year}-{month:02}-{day:02}"
    for year in ("1900", "2000", "2023", "2024", "2100", "2400", "0004")
    for month in (0, 1, 2, 4, 12, 13)
    for day in (0, 1, 28, 29, 30, 31, 32)
]
CLOCKS = [
    f"{clock}{zone}"
    for clock in ("00:00:00", "23:59:59", "24:00:00", "12:60:00", "12:00:60", "09:10:11.25")
    for zone in ("Z", "z", "+23:59", "-00:00", "+24:00", "+01:60", "")
]


@pytest.mark.parametrize(("name", "texts"), [("date", DAYS), ("time", CLOCKS)])
def test_days_and_times(name: str, texts: list[str]) -> None:
    schema = {"type": "string", "format": name}
    for text in texts:
        valid = jsonschema_rs.is_valid(schema, text, validate_formats=True)
        assert admits(schema, text) == valid, text
    both = {"type": "string", "format": "date-time"}
    assert admits(both, "2024-02-29T12:00:00Z")
    assert not admits(both, "2023-02-29T12:00:00Z")
    assert not admits(both, "2024-02-29T12:00:60Z")
    assert not admits(both, "2024-02-29 12:00:00Z")


def test_addresses() -> None:
    schema = {"type": "string", "format": "email"}
    for count in (1, 64, 65):
        text = "a" * count + "@example.org"
        assert admits(schema, text) == jsonschema_rs.is_valid(schema, text, validate_formats=True)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_drawn_validates(name: str) -> None:
    schema = {"type": "string", "format": name}
    judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    draw, whole = random.Random(name), 0
    for _ in range(60):
        matcher, tokens = COMPILER.begin(json_grammar(schema)), list[int]()
        while len(tokens) < 80:
            allowed = [t for t in matcher.allowed().nonzero()[0].tolist() if t != TOKENIZER.eos]
            if not allowed:
                whole += 1
                judge.validate(json.loads(b"".join(map(TOKENIZER.token_bytes, tokens))))
                break
            ends = [t for t in allowed if TOKENIZER.token_bytes(t) == b'"' and tokens]
            tokens.append(draw.choice(ends if ends and draw.random() < 0.3 else allowed))
            assert matcher.take(tokens[-1])
    assert whole > 40


def test_they_are_found_wherever_a_schema_stands() -> None:
    dated = {"type": "string", "format": "date"}
    told = {"enum": [dated], "default": dated}
    named = {"enum": dated, "format": dated, "x": {"$ref": "#/$defs/default"}}
    schema = {
        "properties": named,
        "items": [dated, {"anyOf": [dated], **told}],
        "$defs": {"default": {**dated, "pattern": "^2", "allOf": [{"maxLength": 10}]}},
        "format": "uuid",
    }
    made = strict_formats(schema)
    held = strict_formats(dated)
    assert "format" not in held
    assert made["properties"] == {"enum": held, "format": held, "x": named["x"]}
    assert made["items"] == [held, {"anyOf": [held], **told}]
    assert made["$defs"]["default"] == {
        "type": "string", "pattern": "^2", "allOf": [{"maxLength": 10}, *held["allOf"]],
    }  # fmt: skip
    assert made["format"] == "uuid"
    assert schema["items"][0] is dated
    assert dated == {"type": "string", "format": "date"}
    assert admits({**dated, "pattern": "^2"}, "2024-02-29")
    assert not admits({**dated, "pattern": "^2"}, "1024-02-29")
    tool = Tool("f", {"name": "f", "parameters": {"properties": {"d": dated}}})
    COMPILER.begin(calls_grammar([tool], single=True))
