"""What a client may say about tools, and how an assistant's calls are written."""

import pytest

from deskside.errors import InputError
from deskside.text.tools import (
    DSML,
    Offer,
    Tool,
    ToolCall,
    offered,
    read_calls,
    read_tools,
    written_calls,
)

ADD = {"name": "add", "description": "größer", "parameters": {"b": 1, "a": [1.0]}}


def test_tools_are_read_and_shown_as_they_came() -> None:
    found = read_tools([{"type": "function", "function": ADD}, {"function": {"name": "now"}}])
    assert [tool.name for tool in found] == ["add", "now"]
    assert found[0].line == (
        '{"name": "add", "description": "größer", "parameters": {"b": 1, "a": [1.0]}}'
    )
    assert read_tools(None) == read_tools([]) == ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "tools must be a list"),
        ([{}] * 1025, "tools must be a list of at most"),
        (["x"], r"tools\[0\]\.type must be function, got None"),
        ([{"type": "web_search"}], r"tools\[0\]\.type must be function, got 'web_search'"),
        ([{"type": "function"}], r"tools\[0\]\.function must be an object"),
        ([{"function": {}}], r"tools\[0\]\.function\.name must be text of 1 to"),
        ([{"function": {"name": "x" * 257}}], r"function\.name must be text of 1 to"),
        ([{"function": {"name": 'a"b'}}], r"function\.name must have no quotation mark"),
        ([{"function": {"name": f"a{DSML}"}}], r"function\.name must have no quotation mark"),
        ([{"function": {"name": "\ud800"}}], r"function\.name is not valid UTF-8"),
        ([{"function": {"name": "a", "description": "\ud800"}}], "function is not valid UTF-8"),
        ([{"function": {"name": "a", "parameters": []}}], r"parameters must be an object"),
        ([{"function": {"name": "a"}}] * 2, r"tools\[1\]: the name 'a' stands twice"),
    ],
)
def test_refusals_of_tools(value: object, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_tools(value)
    assert str(caught.value).startswith("tools")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x", "calls must be a list, got str"),
        ([1], r"calls\[0\]\.function must be an object"),
        ([{"function": {"arguments": "{}"}}], r"calls\[0\]\.function\.name must be text"),
        ([{"function": {"name": "a", "arguments": {}}}], r"arguments must be text, got dict"),
        ([{"id": 1, "function": {"name": "a"}}], r"calls\[0\]\.id must be text, got int"),
    ],
)
def test_refusals_of_calls(value: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_calls(value, "calls")


def test_choices() -> None:
    tools = (Tool("add", ADD),)
    both = (*tools, Tool("other", {"name": "other"}))
    assert offered(both, None) == offered(both, "auto") == Offer(both)
    assert offered(both, "none") == Offer()
    assert offered(both, "required") == Offer(both, both)
    for named in ({"function": {"name": "add"}}, {"name": "add"}):
        assert offered(both, {"type": "function", **named}) == Offer(both, tools)
    for wrong, told in (
        ("any", "must be auto, none, required or name a function, got 'any'"),
        ({"type": "allowed_tools"}, "must be auto"),
        ({"type": "function", "function": {"name": "x"}}, ": there is no tool 'x'"),
        ({"type": "function", "function": "x"}, ": there is no tool None"),
    ):
        with pytest.raises(
            InputError, match=f"^tool_choice{told if told[0] == ':' else f' {told}'}"
        ):
            offered(both, wrong)
    with pytest.raises(InputError, match=r"^tool_choice: required needs at least one tool"):
        offered((), "required")


def test_calls_are_written_as_the_format_has_them() -> None:
    calls = [
        ToolCall("f", '{"s": "a\\nb", "n": 1.50, "l": [1, "ü"], "z": null}'),
        ToolCall("g", "{}"),
        ToolCall("h", "not JSON"),
        ToolCall("i", "[1]"),
    ]
    assert DSML.join(written_calls(calls)) == (
        "\n\n<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="s" string="true">a\nb</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">1.5</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="l" string="false">[1, "ü"]</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="z" string="false">null</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="g">\n'
        "\n"
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="h">\n'
        '<｜DSML｜parameter name="arguments" string="true">not JSON</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="i">\n'
        '<｜DSML｜parameter name="arguments" string="true">[1]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        "</｜DSML｜tool_calls>"
    )
