"""Thinking and effort under all their names."""

from typing import Any

import pytest

from deskside.errors import InputError
from deskside.text.chat_options import ChatOptions, read_options

ON, OFF = {"type": "enabled"}, {"type": "disabled"}


@pytest.mark.parametrize(
    ("name", "effort"),
    [
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "low"),
        ("high", "high"),
        ("xhigh", "max"),
        ("max", "max"),
    ],
)
def test_efforts(name: str, effort: str) -> None:
    assert read_options(reasoning_effort=name) == ChatOptions(None, effort)
    assert read_options(chat_template_kwargs={"reasoning_effort": name}) == ChatOptions(
        None, effort
    )


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, False),
        ({"thinking": OFF}, False),
        ({"thinking": ON}, True),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"reasoning_effort": "none"}}, False),
        ({"chat_template_kwargs": {"thinking": None}}, None),
        ({"chat_template_kwargs": {}}, None),
        ({"reasoning_effort": "low"}, None),
        # the first one decides
        ({"thinking": ON, "chat_template_kwargs": {"thinking": False}}, True),
        ({"thinking": ON, "reasoning_effort": "none"}, True),
        ({"thinking": OFF, "reasoning_effort": "max"}, False),
        ({"chat_template_kwargs": {"thinking": True, "enable_thinking": False}}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, True),
    ],
)
def test_whether_to_think(fields: dict[str, Any], thinks: bool | None) -> None:
    assert read_options(**fields).thinking is thinks


def test_the_request_wins_over_the_template() -> None:
    template = {"reasoning_effort": "high", "drop_thinking": False}
    assert read_options("max", None, template) == ChatOptions(None, "max", keep_reasoning=True)
    assert read_options(None, None, template) == ChatOptions(None, "high", keep_reasoning=True)
    assert not read_options(chat_template_kwargs={"drop_thinking": True}).keep_reasoning


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reasoning_effort": "huge"}, r"^reasoning_effort must be one of none, .* got 'huge'"),
        ({"reasoning_effort": ["low"]}, "^reasoning_effort must be one of"),
        ({"reasoning_effort": 1}, "^reasoning_effort must be one of"),
        ({"thinking": True}, r"^thinking\.type must be enabled or disabled, got None"),
        ({"thinking": {"type": "auto"}}, r"^thinking\.type must .* got 'auto'"),
        ({"thinking": {"type": []}}, r"^thinking\.type must"),
        ({"thinking": {"type": "enabled", "effort": 9}}, r"thinking may .*'effort'"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs must be an object, got list"),
        ({"chat_template_kwargs": {"x": 1}}, r"chat_template_kwargs may hold .* 'x'"),
        ({"chat_template_kwargs": {"thinking": "yes"}}, r"kwargs\.thinking must be true or false"),
        (
            {"chat_template_kwargs": {"reasoning_effort": "x" * 10**6}},
            r"^chat_template_kwargs\.reasoning_effort must be one of",
        ),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_options(**fields)
    assert len(str(caught.value)) < 300
