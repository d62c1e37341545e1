"""A text under a constraint: where the grammar begins, and the way back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deskside.core import Constraint
from deskside.layout.folder import resolve
from deskside.text.grammar import json_grammar, regex_grammar
from deskside.text.guide import Guide, Guides
from deskside.text.reasoning import END_OF_REASONING
from deskside.text.tokenizer import Tokenizer
from deskside.text.tools import DSML, OPEN

TOKENIZER = Tokenizer.open(resolve("deskside-mini"))
GUIDES = Guides(TOKENIZER, TOKENIZER.vocab_size)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "string"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
AT_ONCE = Constraint(json_grammar(SCHEMA))
BEHIND = Constraint(json_grammar(SCHEMA), END_OF_REASONING)
END = TOKENIZER.controls[END_OF_REASONING]


def ids(text: str) -> tuple[int, ...]:
    return TOKENIZER.encode_plain(text)


def words(text: str) -> list[int]:
    """Spell a text in single bytes."""
    return [token for character in text for token in ids(character)]


def led(guide: Guide, text: str) -> Guide:
    for token in words(text):
        assert guide.take(token), (token, text)
    return guide


def test_a_grammar_without_a_beginning_holds_at_once() -> None:
    guide = GUIDES.begin(AT_ONCE)
    allowed = {TOKENIZER.token_bytes(int(token))[:1] for token in guide.allowed().nonzero()[0]}
    assert allowed == {b"{"}


@pytest.mark.parametrize("spelled", [False, True], ids=["control token", "letters"])
def test_a_grammar_holds_from_the_token_behind_its_beginning(spelled: bool) -> None:
    guide = led(GUIDES.begin(BEHIND), "{ any < thought")
    assert guide.allowed()[ids("x")[0]]
    assert not guide.allowed()[TOKENIZER.eos], "no end without an answer"
    assert not guide.take(TOKENIZER.eos)
    assert guide.take(END) if not spelled else led(guide, END_OF_REASONING)
    assert np.array_equal(guide.allowed(), GUIDES.begin(AT_ONCE).allowed())
    guide.give_back(1)
    assert guide.allowed()[ids("x")[0]]


def test_no_token_reaches_over_the_beginning() -> None:
    """Whatever is spelled so far; a vocabulary with such tokens is made up for it."""
    guide = GUIDES.begin(Constraint(regex_grammar("x"), "ab"))
    guide = led(guide, "a")
    over = [
        token
        for token in range(TOKENIZER.vocab_size)
        if TOKENIZER.text_bytes(token).startswith(b"b") and len(TOKENIZER.text_bytes(token)) > 1
    ]
    assert len(over) > 5
    assert not guide.allowed()[over].any()
    assert guide.allowed()[ids("b")[0]]
    assert led(GUIDES.begin(Constraint(regex_grammar("x"), "ab")), "z").allowed()[over].any()
    inside = [
        token
        for token in range(TOKENIZER.vocab_size)
        if b"ab" in TOKENIZER.text_bytes(token)[:-1]
        and not TOKENIZER.text_bytes(token).endswith(b"ab")
    ]
    assert len(inside) > 5
    assert not GUIDES.begin(Constraint(regex_grammar("x"), "ab")).allowed()[inside].any()
    assert not any(guide.take(token) for token in over)


def test_what_may_not_come_before_does_not() -> None:
    guide = GUIDES.begin(Constraint(AT_ONCE.grammar, END_OF_REASONING, (OPEN,)))
    led(guide, "think <")
    assert guide.take(TOKENIZER.controls[DSML])
    led(guide, "tool_call")
    (last,) = ids("s")
    assert guide.allowed()[last]
    assert guide.take(last)
    assert not any(guide.take(token) for token in ids(">"))
    assert guide.take(END)


def test_forks_of_one_grammar_do_not_meet() -> None:
    one, other = GUIDES.begin(AT_ONCE), GUIDES.begin(AT_ONCE)
    led(one, '{"a": [1')
    assert np.array_equal(other.allowed(), GUIDES.begin(AT_ONCE).allowed())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_way_there_and_back_is_the_straight_way(data: st.DataObject) -> None:
    """Random takes, some given back, some kept for good, against a guide that took what stayed."""
    constraint = data.draw(st.sampled_from([AT_ONCE, BEHIND]))
    guide, kept, ahead = GUIDES.begin(constraint), [], []
    for _ in range(data.draw(st.integers(1, 30))):
        mask = guide.allowed()
        tokens = [token for token in mask.nonzero()[0].tolist() if token != TOKENIZER.eos]
        choice = data.draw(st.integers(0, 9))
        if choice < 6 and tokens:
            token = END if choice < 2 and mask[END] else data.draw(st.sampled_from(tokens))
            assert guide.take(token)
            ahead.append(token)
        elif choice < 8:
            count = data.draw(st.integers(0, len(ahead)))
            guide.give_back(count)
            del ahead[len(ahead) - count :]
        else:
            guide.settle()
            kept, ahead = kept + ahead, []
    straight = GUIDES.begin(constraint)
    assert all(straight.take(token) for token in [*kept, *ahead])
    assert np.array_equal(guide.allowed(), straight.allowed())
