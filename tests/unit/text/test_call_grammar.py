"""The grammar of forced calls: whatever is drawn from it is read back as calls that fit."""

import json
import random
from typing import Any

import jsonschema_rs
import pytest

from deskside.errors import InputError
from deskside.layout.folder import resolve
from deskside.text.answer import AnswerStream
from deskside.text.call_grammar import answer_or_calls_grammar, calls_grammar
from deskside.text.grammar import Compiler, Matcher
from deskside.text.reasoning import Channel
from deskside.text.tokenizer import Tokenizer
from deskside.text.tools import DSML, Tool, ToolCall, written_calls

TOKENIZER = Tokenizer.open(resolve("deskside-mini"))
COMPILER = Compiler(TOKENIZER, TOKENIZER.vocab_size)
LOOK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "deep": {"$ref": "#/$defs/deep"},
        'odd"name': {"type": ["string", "null"], "maxLength": 3},
        "tag": {"type": "string", "pattern": "^[a-z]{2}$"},
    },
    "required": ["city", "days", "tag"],
    "$defs": {
        "deep": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}},
            "required": ["on"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS = {"look": LOOK, "nothing": {}, "any": {"type": "object", "required": ["x"]}}
TOOLS = tuple(Tool(name, {"name": name, "parameters": one}) for name, one in SCHEMAS.items())

END_VALUE = (
    *TOKENIZER.encode_plain("</"),
    TOKENIZER.controls[DSML],
    *TOKENIZER.encode_plain("parameter>"),
)


def drawn(matcher: Matcher, draw: random.Random) -> list[int]:
    """Draw a text from what is allowed, with a bent for what closes something."""
    tokens: list[int] = []
    while len(tokens) < 3000:
        allowed = matcher.allowed().nonzero()[0].tolist()
        if allowed == [TOKENIZER.eos]:
            return tokens
        closing = [t for t in allowed if TOKENIZER.token_bytes(t)[:1] in b'"}]']
        if closing and draw.random() < 0.5:
            allowed = closing
        tokens.append(draw.choice([t for t in allowed if t != TOKENIZER.eos]))
        assert matcher.take(tokens[-1])
        text = b"".join(map(TOKENIZER.token_bytes, tokens))
        literal = text.rfind(b'string="true"') > text.rfind(b'string="false"')
        tried = len(tokens) % 9 == 0 if literal else draw.random() < 0.02  # chance is too slow
        for token in END_VALUE if tried else ():
            if not matcher.take(token):
                break
            tokens.append(token)
    raise AssertionError("it does not end")


def calls_of(tokens: list[int]) -> list[ToolCall]:
    """Read a text as the service does; there is nothing but calls in it."""
    stream = AnswerStream(TOKENIZER.text_bytes, Channel.CONTENT, tools=True)
    parts = [part for token in tokens for part in stream.feed([token])] + stream.finish()
    assert all(isinstance(part, ToolCall) for part in parts), parts
    return [part for part in parts if isinstance(part, ToolCall)]


def spelled(matcher: Matcher, text: str) -> bool:
    """Say whether a grammar admits a text, control tokens as such."""
    parts = text.split("｜DSML｜")
    ids = [token for part in parts for token in (*TOKENIZER.encode_plain(part), -1)][:-1]
    dsml = TOKENIZER.controls["｜DSML｜"]
    return all(matcher.take(dsml if token < 0 else token) for token in ids) and bool(
        matcher.allowed()[TOKENIZER.eos]
    )


def fit(call: ToolCall) -> None:
    jsonschema_rs.validator_for(SCHEMAS[call.name]).validate(json.loads(call.arguments))


@pytest.mark.parametrize("name", SCHEMAS)
def test_one_call_of_a_tool_fits_its_schema(name: str) -> None:
    tool = next(tool for tool in TOOLS if tool.name == name)
    draw = random.Random(name)
    for _ in range(6):
        (call,) = calls_of(drawn(COMPILER.begin(calls_grammar([tool], single=True)), draw))
        assert call.name == name
        fit(call)


def written(*calls: ToolCall) -> str:
    return "｜DSML｜".join(written_calls(calls))


CALL = ToolCall("look", json.dumps({"city": "a <b>\n", "unit": "c", "days": 3, "tag": "ab"}))


def test_what_the_format_writes_is_admitted() -> None:
    """But a value that is checked stands there as JSON, also where it is a text."""
    plain = json.loads(CALL.arguments)
    text = written(CALL).replace(
        'parameter name="tag" string="true">ab<', 'parameter name="tag" string="false">"ab"<'
    )
    single = calls_grammar(TOOLS, single=True)
    assert plain["city"] in text
    assert spelled(COMPILER.begin(single), text)
    assert not spelled(COMPILER.begin(single), "Sure" + text)
    assert not spelled(COMPILER.begin(single), text.replace('"c"', '"k"').replace(">c<", ">k<"))
    assert not spelled(COMPILER.begin(single), text.replace(">3<", ">10<"))
    assert not spelled(COMPILER.begin(single), text.replace("look", "other"))


def test_more_than_one_call_only_where_that_is_allowed() -> None:
    two = written(ToolCall("nothing", "{}"), ToolCall("nothing", "{}"))
    assert spelled(COMPILER.begin(calls_grammar(TOOLS, single=False)), two)
    assert not spelled(COMPILER.begin(calls_grammar(TOOLS, single=True)), two)


def test_an_answer_or_a_call() -> None:
    grammar = answer_or_calls_grammar({"type": "boolean"}, TOOLS, single=False)
    assert spelled(COMPILER.begin(grammar), "true")
    assert spelled(COMPILER.begin(grammar), written(ToolCall("nothing", "{}")))
    assert not spelled(COMPILER.begin(grammar), "true" + written(ToolCall("nothing", "{}")))


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"anyOf": [{}]}, "anyOf"),
        ({"type": "array"}, "type must be object"),
        ({"properties": {"a": False}}, "'a'"),
        ({"properties": {"a\nb": {}}}, "called"),
        ({"properties": ["a"]}, "properties"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(parameters: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match="'f'") as refused:
        calls_grammar([Tool("f", {"name": "f", "parameters": parameters})], single=True)
    assert told in str(refused.value)
