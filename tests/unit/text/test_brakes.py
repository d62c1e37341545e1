"""What would go on for ever under a form ends, and nothing that the form needs is taken away."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskside.core import Constraint
from deskside.text.brakes import DEEPEST, MOST_DIGITS, Brakes, Place
from deskside.text.call_grammar import calls_grammar
from deskside.text.grammar import json_grammar, regex_grammar
from deskside.text.tools import DSML, Tool
from tests.unit.text.test_guide import GUIDES, TOKENIZER, led

BRAKES = Brakes(TOKENIZER, TOKENIZER.vocab_size)
NODE: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["n"],
    "additionalProperties": False,
}


def firsts(schema: dict[str, Any], text: str) -> set[bytes]:
    """Return the first bytes of all that can follow a text, the end as nothing."""
    return heads(json_grammar(schema), text)


def heads(grammar: str, text: str) -> set[bytes]:
    allowed = led(GUIDES.begin(Constraint(grammar)), text).allowed().nonzero()[0]
    return {TOKENIZER.text_bytes(int(token))[:1] for token in allowed}


DIGITS = {b"%d" % digit for digit in range(10)}


@pytest.mark.parametrize(
    ("schema", "before"),
    [
        ({"type": "number"}, ""),
        ({"type": "number"}, "0."),
        ({"type": "number", "minimum": 0}, "0."),
        ({"type": "integer"}, "-"),
        ({"type": "string", "format": "date-time"}, '"2000-01-01T00:00:00.'),
        ({"type": "string", "pattern": "^[0-9]*$"}, '"'),
    ],
)
def test_a_row_of_digits_ends(schema: dict[str, Any], before: str) -> None:
    assert firsts(schema, before + "1" * (MOST_DIGITS - 1)) >= DIGITS
    after = firsts(schema, before + "1" * MOST_DIGITS)
    assert after
    assert not after & DIGITS


def test_no_number_is_larger_than_a_double() -> None:
    for before in ("1e", "1E-", "0.5e+", "2e0"):
        text = before + "9" * (2 - before[-1].isdigit())
        assert firsts({"type": "number"}, text[:-1]) >= DIGITS
        assert not firsts({"type": "number"}, text) & DIGITS
    assert firsts({"type": "array", "items": {"type": "integer"}}, "[1, 234") >= DIGITS
    assert heads(regex_grammar("[0-9a-f]{9}"), "1e12") >= DIGITS
    assert firsts({"type": "string", "format": "uuid"}, '"1e12') >= DIGITS


def test_digits_that_the_form_asks_for_come() -> None:
    long = "1" * (MOST_DIGITS + 7)
    assert heads(regex_grammar("[0-9]{50}"), long) == DIGITS
    assert firsts({"type": "string", "pattern": "^[0-9]{50}$"}, f'"{long}') == DIGITS
    assert firsts({"type": "string"}, f'"{long}') >= DIGITS, "any text may be one of digits"


def test_a_nesting_ends() -> None:
    level = '{"n":'
    assert firsts(NODE, level * (DEEPEST - 1)) >= {b"{", b"n"}
    deep = firsts(NODE, level * DEEPEST)
    assert b"n" in deep
    assert b"{" not in deep
    deep = firsts({}, "[" * DEEPEST)
    assert deep >= {b"]", b'"', b"1"}
    assert not deep & {b"[", b"{"}
    assert firsts({}, "[" * DEEPEST + '"[') >= {b"[", b"{"}, "in a text they nest nothing"


def test_no_token_ends_a_text_and_nests_too_deeply() -> None:
    guide = led(GUIDES.begin(Constraint(json_grammar({"type": "object"}))), '{"a":' * DEEPEST)
    allowed = led(guide, '1,"a').allowed().nonzero()[0]
    words = [TOKENIZER.text_bytes(int(token)) for token in allowed]
    assert b'"' in words
    assert not [word for word in words if Place(quoted=True).behind(word).depth]


def test_a_nesting_that_the_form_asks_for_comes() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(DEEPEST + 5):
        schema = {**NODE, "properties": {"n": schema}}
    assert b"{" in firsts(schema, '{"n":' * DEEPEST)


def test_markup_is_written_with_its_token() -> None:
    tool = Tool("f", {"name": "f", "parameters": {"properties": {"n": {"enum": ["c", "｜D"]}}}})
    guide = GUIDES.begin(Constraint(calls_grammar([tool], single=True)))
    mark = TOKENIZER.controls[DSML]
    led(guide, "\n\n<")
    assert guide.allowed().nonzero()[0].tolist() == [mark]
    assert guide.take(mark)
    led(guide, "tool_calls>\n<")
    assert guide.take(mark)
    led(guide, 'invoke name="f">\n')
    assert guide.allowed().sum() == 1, "a tag follows in any case"
    led(guide, "<")
    (slash,) = TOKENIZER.encode_plain("/")
    assert set(guide.allowed().nonzero()[0].tolist()) == {slash, mark}
    text = {"type": "string"}
    assert firsts(text, '"') >= {"｜".encode()[:1], b"q"}, "in a text its letters can come"


def test_what_is_given_back_is_not_counted() -> None:
    guide = led(GUIDES.begin(Constraint(json_grammar({"type": "integer"}))), "1" * MOST_DIGITS)
    guide.give_back(1)
    assert guide.allowed()[TOKENIZER.encode_plain("1")[0]]


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=9), lambda one: st.lists(one, max_size=3)
)


@given(value=JSON | st.text('1e+-[]{}"\\ab', max_size=20))
def test_tokens_lead_where_their_bytes_do(value: object) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    place = Place()
    for token in TOKENIZER.encode_plain(text):
        after = place.behind(TOKENIZER.token_bytes(token))
        assert BRAKES.behind(place, token) == after
        place = after


@given(value=JSON, cut=st.integers(0, 200))
def test_a_place_is_the_same_for_every_cut(value: object, cut: int) -> None:
    for ascii_only in (False, True):
        word = json.dumps(value, ensure_ascii=ascii_only).encode()
        whole = Place().behind(word)
        assert Place().behind(word[:cut]).behind(word[cut:]) == whole
        assert whole == Place(whole.digits, whole.exponent)
        assert Place().behind(b"[[" + word).depth == 2
        assert Place().behind(b'["' + word.replace(b"\\", b"").replace(b'"', b"")).depth == 1


def test_no_other_control_token_is_forced() -> None:
    """A constant may spell one: its letters come."""
    guide = GUIDES.begin(Constraint(json_grammar({"const": "</think><｜end▁of▁sentence｜>"})))
    text = ""
    while TOKENIZER.eos not in (allowed := guide.allowed().nonzero()[0].tolist()):
        assert len(allowed) == 1
        assert allowed[0] not in TOKENIZER.controls.values()
        assert guide.take(allowed[0])
        text += TOKENIZER.token_bytes(allowed[0]).decode("latin-1")
    assert json.loads(text.encode("latin-1")) == "</think><｜end▁of▁sentence｜>"
