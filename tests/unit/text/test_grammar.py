"""Grammars: what is refused, in which words, and that nothing in them lasts for ever."""

import json
from typing import Any

import numpy as np
import pytest

from deskside.errors import InputError
from deskside.layout.folder import resolve
from deskside.text import grammar
from deskside.text.grammar import Compiler, Matcher, json_grammar, lark_grammar, regex_grammar
from deskside.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.open(resolve("deskside-mini"))
VOCAB = TOKENIZER.vocab_size + 64
"""Some models have more rows than their tokenizer has ids."""


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(TOKENIZER, VOCAB)


def admits(matcher: Matcher, text: str) -> bool:
    """Say whether a grammar admits exactly this text, in the tokenizer's own spelling."""
    for token in TOKENIZER.encode_plain(text):
        if not matcher.allowed()[token] or not matcher.take(token):
            return False
    return bool(matcher.allowed()[TOKENIZER.eos])


@pytest.mark.parametrize(
    "keyword",
    [
        {"not": {"type": "string"}},
        {"if": {}, "then": {}},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "contains": {"const": 1}},
        {"type": "object", "propertyNames": {"maxLength": 3}},
        {"dependentRequired": {"a": ["b"]}},
        {"dependentSchemas": {"a": {}}},
        {"unevaluatedProperties": False},
        {"$dynamicRef": "#x"},
    ],
    ids=lambda schema: min({*schema} - {"type"}),
)
def test_a_keyword_that_cannot_be_kept_is_named(
    compiler: Compiler, keyword: dict[str, Any]
) -> None:
    (name, *_) = {*keyword} - {"type", "then"}
    with pytest.raises(InputError) as refused:
        compiler.begin(json_grammar(keyword))
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (regex_grammar("(a"), "unclosed group"),
        (regex_grammar("(?=a)b"), "look-around"),
        (regex_grammar("a{5"), "regex"),
        (lark_grammar("start: foo\n"), "1(8)"),
        (lark_grammar('start: "a" |\n  bar ]\n'), "2(7)"),
        (lark_grammar("start: start start\n"), "cannot be followed"),
        (regex_grammar(r"[^\s\S]"), "cannot be followed"),
        (json_grammar({"type": "strin"}), "Invalid type: strin"),
        (json_grammar({"$ref": "#/$defs/x"}), "/$defs/x"),
        (json_grammar({"type": "string", "format": "foo"}), "foo"),
        (json_grammar({"type": "string", "pattern": "(a"}), "unclosed group"),
        (json_grammar({"type": "integer", "minimum": 3, "maximum": 2}), "minimum (3)"),
        ("{}", ""),
        ("nonsense", ""),
    ],
)
def test_what_is_no_grammar_is_refused_in_one_line(
    compiler: Compiler, text: str, told: str
) -> None:
    with pytest.raises(InputError) as refused:
        compiler.begin(text)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "verbose" not in str(refused.value)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}}


BOMBS = {
    "nested": lambda: json_grammar(nested(400)),
    "optional": lambda: json_grammar(optional(4000)),
    "enum": lambda: json_grammar({"enum": [f"value {i}" for i in range(100_000)]}),
    "long": lambda: regex_grammar("a" * (grammar.LONGEST + 1)),
    "expressions": lambda: regex_grammar("(a|aa|aaa){1,5000}b" + "(x|y)?" * 3000),
    "all of": lambda: json_grammar(
        {"allOf": [{"type": "string", "pattern": f"a.{{{n}}}b"} for n in range(40, 90)]}
    ),
    "all of one property": lambda: json_grammar(
        {"allOf": [{"properties": {"p": {"pattern": f"a.{{{n}}}b"}}} for n in range(40, 90)]}
    ),
    "all of references": lambda: json_grammar(
        {
            "$defs": {
                "x": {"allOf": [{"pattern": "a.*b"}, {"pattern": "b.*c"}]},
                "y": {"allOf": [{"$ref": "#/$defs/x"}] * 3},
            },
            "allOf": [{"$ref": "#/$defs/y"}, {"$ref": "#/$defs/x"}, {"pattern": "c"}],
        }
    ),
    "intersection": lambda: lark_grammar("start: A\nA: /.*a.{40}b.*/ & /.*a.{41}b.*/"),
    "complement": lambda: lark_grammar("start: A\nA: ~/.*a.{40}b.*/"),
    "hidden": lambda: lark_grammar('start: "&" // ~\nA: %json {"allOf": []}'),
}


def walk(compiler: Compiler, text: str) -> None:
    matcher = compiler.begin(text)
    for _ in range(20):
        matcher.take(int(matcher.allowed().nonzero()[0][-1]))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_or_goes_off_in_bounds(compiler: Compiler, name: str) -> None:
    """It is refused at once, or in the middle of a text."""
    with pytest.raises(InputError):
        walk(compiler, BOMBS[name]())


def test_texts_are_admitted_as_a_schema_says(compiler: Compiler) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    text = json_grammar(schema)
    said = {"n": 1, "s": "ü\n"}
    for layout in (None, 2):
        assert admits(compiler.begin(text), json.dumps(said, ensure_ascii=False, indent=layout))
    for other in ('{"s": "a"}', '{"n": 1.5}', '{"n": 1, "x": 2}', '{"n": 1', "[1]"):
        assert not admits(compiler.begin(text), other)


def test_white_space_has_an_end(compiler: Compiler) -> None:
    matcher = compiler.begin(json_grammar({"type": "object"}))
    (blank,) = TOKENIZER.encode_plain(" ")
    (line,) = TOKENIZER.encode_plain("\n")
    assert matcher.take(*TOKENIZER.encode_plain("{"))
    assert matcher.take(line)
    taken = 0
    while matcher.take(blank) or matcher.take(line):
        taken += 1
        assert taken < 100


def test_a_regular_expression_matches_the_whole_text(compiler: Compiler) -> None:
    text = regex_grammar("[a-c]{2}/x")
    assert admits(compiler.begin(text), "ab/x")
    assert not admits(compiler.begin(text), "ab/xx")
    assert not admits(compiler.begin(text), "b/x")


def test_no_control_token_and_no_row_without_a_token_is_allowed(compiler: Compiler) -> None:
    mask = compiler.begin(regex_grammar(r"[\s\S]*")).allowed()
    assert mask.shape == (VOCAB,)
    assert not mask[TOKENIZER.vocab_size :].any()
    assert mask[TOKENIZER.eos]
    assert not any(mask[token] for token in TOKENIZER.special_ids if token != TOKENIZER.eos)


def test_what_does_not_fit_changes_nothing(compiler: Compiler) -> None:
    matcher = compiler.begin(regex_grammar("ab+"))
    a, b, x = (TOKENIZER.encode_plain(text)[0] for text in "abx")
    assert matcher.take(a)
    before = matcher.allowed()
    assert not matcher.take(x)
    assert not matcher.take(TOKENIZER.eos)
    assert np.array_equal(matcher.allowed(), before)
    assert matcher.take(b)
    assert matcher.allowed()[TOKENIZER.eos]
    assert not matcher.take(TOKENIZER.eos), "the end is no part of the text"
    matcher.give_back(2)
    assert not matcher.take(b)
    assert matcher.take(a)


def test_compiled_grammars_are_kept_within_a_bound(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    own = Compiler._compile

    def watched(self: Compiler, text: str, *others: Any) -> Matcher:
        compiled.append(text)
        return own(self, text, *others)

    monkeypatch.setattr(Compiler, "_compile", watched)
    texts = [regex_grammar(f"x{number}") for number in range(grammar.MOST_KEPT + 1)]
    first = compiler.begin(texts[0])
    assert first.take(TOKENIZER.encode_plain("x")[0])
    assert admits(compiler.begin(texts[0]), "x0"), "each text starts at the beginning"
    assert compiled == texts[:1]
    for text in texts[1:]:
        compiler.begin(text)
    compiler.begin(texts[0])
    assert compiled == [*texts, texts[0]]


def test_what_only_looks_refused_is_served(compiler: Compiler) -> None:
    text = lark_grammar('start: "&" A~2 // a & b\nA: /[&~%]/\n')
    assert admits(compiler.begin(text), "&~%")
    assert not admits(compiler.begin(text), "&~")


def test_a_reference_to_somewhere_else_is_refused_by_name() -> None:
    for pointer in ("https://example.com/x", "#x"):
        with pytest.raises(InputError, match=pointer):
            json_grammar({"$ref": pointer})


def test_usual_schemas_have_few_patterns_together(compiler: Compiler) -> None:
    dates = {f"d{n}": {"type": "string", "format": "date"} for n in range(20)}
    node = {"type": "object", "properties": {**dates, "next": {"$ref": "#/$defs/n"}}}
    schema = {"$defs": {"n": node}, "allOf": [{"$ref": "#/$defs/n"}, {"properties": dates}]}
    compiler.begin(json_grammar(schema))
