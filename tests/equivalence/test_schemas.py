"""Two hundred schemas: what the model that ships writes under each of them validates.

Every keyword that is served, alone and mixed. Texts and lists have bounds; the digits of a number
and the depth of lists within lists have them from the service. So every text ends by itself.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from deskside.core import Constraint, FinishReason, SamplingParams
from deskside.llm import LLM
from deskside.text.grammar import json_grammar
from tests.equivalence.test_engine import opened

COUNT = 200
MOST = 700
"""Tokens of a text; the list that refers to itself needs the most, some 460."""
TEXT: dict[str, Any] = {"type": "string", "maxLength": 8}
SMALL: dict[str, Any] = {"type": "integer", "minimum": -9, "maximum": 99}


def few(items: dict[str, Any], most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most}


def exactly(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


LEAVES: dict[str, dict[str, Any]] = {
    "text": TEXT,
    "null or text": {"type": ["string", "null"], "maxLength": 5},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "enum": {"enum": ["a", 1, None, "ü", [1, {"b": False}]]},
    "const": {"const": {"k": [1, 2], "s": "x y"}},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[a-z]{2}-[0-9]{1,3}$"},
    "pattern within": {"type": "string", "pattern": "[0-9]", "maxLength": 6},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "integer": SMALL,
    "open integer": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 20},
    "any number": {"type": "number"},
    "any integer": {"type": "integer"},
    "positive": {"type": "number", "exclusiveMinimum": 0},
    "number": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    "list": {"type": "array", "items": SMALL, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [TEXT, SMALL], "items": False, "minItems": 2},
    "nothing": exactly(),
    "optional": {
        "type": "object",
        "properties": {"a": TEXT, "b": SMALL, "c": {"type": "null"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "names": {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,3}$": SMALL},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "any of": {"anyOf": [SMALL, exactly(a=TEXT)]},
    "one of": {"oneOf": [{"type": "integer", "minimum": 5, "maximum": 9}, {"type": "boolean"}]},
    "all of": {"allOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 9}]},
}


def made(draw: random.Random, depth: int) -> dict[str, Any]:
    """Put leaves together at random."""
    if depth == 0 or draw.random() < 0.4:
        return draw.choice(list(LEAVES.values()))
    kind = draw.randrange(4)
    if kind == 0:
        return few(made(draw, depth - 1), draw.randint(1, 3))
    if kind == 1:
        return {"anyOf": [made(draw, depth - 1) for _ in range(2)]}
    names = draw.sample(["id", "name", "größe", "a b", "value", '"q"'], draw.randint(1, 4))
    return exactly(**{name: made(draw, depth - 1) for name in names})


def schemas() -> list[dict[str, Any]]:
    """Return them: each leaf alone, a list that refers to itself, and as clients send them."""
    draw = random.Random(11)
    node = exactly(value=SMALL)
    node["properties"]["next"] = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
    node["required"].append("next")
    known = [*LEAVES.values(), {"$defs": {"node": node}, "$ref": "#/$defs/node"}]
    while len(known) < COUNT:
        one = made(draw, 2)
        known += [one] if one not in known else []
    return known


@pytest.fixture(scope="module", params=["off", "auto"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with opened("deskside-mini", kv_tokens=16384, speculation=request.param) as found:
        yield found


def check(llm: LLM, schema: dict[str, Any], temperature: float) -> None:
    """Write two texts and validate them."""
    held = Constraint(json_grammar(schema))
    sampling = SamplingParams(temperature=temperature, seed=7, max_tokens=MOST, constraint=held)
    judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    for one in llm.generate(["value = ", "# JSON\n"], sampling):
        assert one.finish is FinishReason.STOP, (schema, one.text)
        judge.validate(json.loads(one.text))


def test_the_schemas_are_varied() -> None:
    texts = {json.dumps(schema, sort_keys=True) for schema in schemas()}
    assert len(texts) == COUNT


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_text_validates(llm: LLM, temperature: float) -> None:
    for schema in schemas():
        check(llm, schema, temperature)


@pytest.mark.timeout(300)
def test_texts_of_some_schemas_validate(llm: LLM) -> None:
    """Each leaf, drawn: what the fast suite has time for."""
    for schema in schemas()[: len(LEAVES) + 1]:
        check(llm, schema, 1.0)
