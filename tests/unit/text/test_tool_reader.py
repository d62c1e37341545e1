"""Calls in generated text: the same for every cut, and nothing lost where there is none."""

import itertools
import json
import re
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deskside.text.tool_reader import ToolReader
from deskside.text.tools import ToolCall, written_calls

D = "｜DSML｜"
OPEN, CLOSE = f"<{D}tool_calls>", f"</{D}tool_calls>"
Pieces = list[str | ToolCall]


def invoke(name: str, *parameters: tuple[str, str, str]) -> str:
    inside = "\n".join(
        f'<{D}parameter name="{key}" string="{literal}">{value}</{D}parameter>'
        for key, literal, value in parameters
    )
    return f'<{D}invoke name="{name}">\n{inside}\n</{D}invoke>'


TWO = (
    f"a\n\n{OPEN}\n{invoke('f', ('x', 'true', '<b'))}\n{invoke('g', ('y', 'false', '1'))}\n{CLOSE}"
)
CALLS = [ToolCall("f", '{"x": "<b"}'), ToolCall("g", '{"y": 1}')]


def read(chunks: Sequence[str]) -> Pieces:
    reader = ToolReader()
    found = [piece for chunk in chunks for piece in reader.feed(chunk)] + reader.finish()
    assert all(found), "no piece is empty"
    assert reader.finish() == []
    return joined(found)


def joined(found: Pieces) -> Pieces:
    done: Pieces = []
    for piece in found:
        if isinstance(piece, str) and done and isinstance(done[-1], str):
            done[-1] += piece
        else:
            done.append(piece)
    return done


def cuts(text: str, count: int) -> Iterator[list[str]]:
    for places in itertools.combinations(range(1, len(text)), count):
        ends = [0, *places, len(text)]
        yield [text[start:end] for start, end in itertools.pairwise(ends)]


WS = r"[ \t\r\n]*"
END = f"</{D}parameter>"
PLAIN, JSON = "(?:(?!@).)*", r'(?:"(?:\\.|(?!@\n)[^"\\])*(?:"|(?=@\n))|(?!@)(?:\\.|[^"]))*'
VALUE = rf'(?>true">{PLAIN}|false">{JSON})'.replace("@", END)
CALL = re.compile(
    rf"""{WS}<{D}invoke\ name="([^"\n]+)">((?:{WS}<{D}parameter\ name="
    (?>[^\n]*?"\ string="(?=true">|false">)){VALUE}{END})*){WS}</{D}invoke>""".replace(
        "\n    ", ""
    ),
    re.DOTALL,
)
PARAMETER = re.compile(
    rf'<{D}parameter name="([^\n]*?)" string="(?=(true|false)">)({VALUE}){END}', re.DOTALL
)


def by_the_rules(text: str) -> Pieces:
    """State the grammar once more, over the whole text."""
    found: Pieces = []
    while (start := text.find(OPEN)) >= 0:
        shown = text[:start]
        shown = shown[:-2] if shown.endswith("\n\n") else shown.removesuffix("\n")
        rest, calls = text[start + len(OPEN) :], 0
        pieces: Pieces = [shown]
        while (match := CALL.match(rest)) and (call := call_of(match)):
            pieces.append(call)
            rest, calls = rest[match.end() :], calls + 1
        if not calls:
            found.append(text[: start + len(OPEN)])
            text = rest
            continue
        found += pieces
        end = re.match(WS + re.escape(CLOSE), rest)
        text = rest[end.end() :] if end else rest
        if not end and CLOSE.startswith(rest.strip(" \t\r\n")):
            text = ""
    return joined([piece for piece in [*found, text] if piece])


def call_of(match: "re.Match[str]") -> ToolCall | None:
    arguments: dict[str, str] = {}
    for key, literal, value in PARAMETER.findall(match[2]):
        value = value.removeprefix(f'{literal}">')
        if key in arguments:
            return None
        arguments[key] = json.dumps(value, ensure_ascii=False)
        if literal == "false":
            try:
                assert "NaN" not in value
                json.loads(value)
                arguments[key] = value.strip()
            except (ValueError, AssertionError):
                pass
    said = ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {v}" for k, v in arguments.items())
    return ToolCall(match[1], f"{{{said}}}")


def test_two_calls_for_every_two_cuts() -> None:
    for count in (0, 1, 2):
        for chunks in cuts(TWO, count):
            assert read(chunks) == ["a", *CALLS]
    assert read(list(TWO)) == ["a", *CALLS]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_calls_for_every_three_cuts() -> None:
    for chunks in cuts(TWO, 3):
        assert read(chunks) == ["a", *CALLS]


def test_a_text_that_ends_anywhere_loses_nothing() -> None:
    """At each end and for every cut of it: the calls that are whole, and all other text."""
    first = TWO.index(f"</{D}invoke>") + len(f"</{D}invoke>")
    second = TWO.rindex(f"</{D}invoke>") + len(f"</{D}invoke>")
    for end in range(1, len(TWO)):
        text = TWO[:end]
        want = by_the_rules(text)
        calls = [piece for piece in want if isinstance(piece, ToolCall)]
        assert calls == CALLS[: (end >= first) + (end >= second)]
        if not calls:
            assert want == [text]
        for chunks in cuts(text, 1):
            assert read(chunks) == want
        assert read(list(text)) == want


ONE = invoke("f")
NONE = [
    f"{OPEN}",
    f"{OPEN}\n{CLOSE}",
    f"\n\n{OPEN}x{ONE}{CLOSE}",
    f"{OPEN}\n{invoke('')}\n{CLOSE}",
    f'{OPEN}\n<{D}invoke name="a"b">\n</{D}invoke>\n{CLOSE}',
    f'{OPEN}\n<{D}invoke name="a\n">\n</{D}invoke>\n{CLOSE}',
    f"{OPEN}\n<{D}invoke>\n</{D}invoke>\n{CLOSE}",
    f"{OPEN}\n{invoke('f', ('x', 'true', '1'), ('x', 'true', '2'))}\n{CLOSE}",
    f"{OPEN}\n{invoke('f', ('x', 'maybe', '1'))}\n{CLOSE}",
    f'{OPEN}\n<{D}parameter name="x" string="true">1</{D}parameter>\n{CLOSE}',
    f'{OPEN}\n<{D}invoke name="f">\ntext</{D}invoke>\n{CLOSE}',
    f"<{D}tool_call>\n{ONE}\n</{D}tool_call>",
    f"<{D}{ONE}",
    f'<{D}invoke name="f"></{D}invoke>',
    f"{CLOSE}{ONE}",
]


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_block_is_text(text: str) -> None:
    for whole in (text, f"a{text}b", f"\n{text}\n"):
        assert read([whole]) == [whole]
        assert read(list(whole)) == [whole]


def test_text_around_blocks() -> None:
    block = f"{OPEN}\n{ONE}\n{CLOSE}"
    call = ToolCall("f", "{}")
    assert read([block]) == [call]
    assert read([f"\n{block}"]) == [call]
    assert read([f"a\n\n\n{block}b"]) == ["a\n", call, "b"]
    assert read([f"{OPEN}\n{block}"]) == [OPEN, call], "the second opening is the one"
    assert read([f"{block}\n\n{block}"]) == [call, call]
    assert read([f"{OPEN}{ONE}\n x"]) == [call, "\n x"]
    assert read([f"{OPEN}{ONE}\n</"]) == [call]
    assert read([f'{OPEN}{ONE}\n<{D}invoke name="g']) == [call, f'\n<{D}invoke name="g']


def test_values() -> None:
    """Only a closing tag ends a value; what claims to be JSON and is none is a text."""
    values = [
        ("a", "true", 'é "\\\n<b></'),
        ("b", "false", ' [1.0, {"k": null}] '),
        ("c", "false", "NaN"),
        ("d", "false", "yes"),
        ("i", "false", "1e999"),
        ("e", "false", ""),
        ('q" x', "true", f"<{D}parameter"),
        ("h", "false", "123456789012345678901234567890"),
    ]
    (call,) = read([f"{OPEN}\n{invoke('f', *values)}\n{CLOSE}"])
    assert isinstance(call, ToolCall)
    assert call.arguments.startswith('{"a": "é \\"\\\\\\n<b></", "b": [1.0, {"k": null}], ')
    assert json.loads(call.arguments) == {
        "a": 'é "\\\n<b></',
        "b": [1.0, {"k": None}],
        "c": "NaN",
        "d": "yes",
        "i": "1e999",
        "e": "",
        'q" x': f"<{D}parameter",
        "h": 123456789012345678901234567890,
    }


HELD = json.dumps({"a": [f"1{END}2", f"{END}", f'\\"{END}\\'], "b": END}, ensure_ascii=False)


def test_a_closing_tag_within_a_text_in_json_ends_nothing() -> None:
    one = invoke("f", ("x", "false", HELD), ("y", "true", '"'))
    text = f"{OPEN}\n{one}\n{CLOSE}"
    call = ToolCall("f", f'{{"x": {HELD}, "y": "\\""}}')
    for count in (0, 1):
        for chunks in cuts(text, count):
            assert read(chunks) == [call]
    assert read(list(text)) == [call]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_such_a_call_for_every_two_cuts() -> None:
    text = f"{OPEN}\n{invoke('f', ('x', 'false', HELD))}\n{CLOSE}"
    for chunks in cuts(text, 2):
        assert read(chunks) == [ToolCall("f", f'{{"x": {HELD}}}')]


def test_a_text_in_json_that_is_never_closed_ends_at_its_line() -> None:
    one = invoke("f", ("x", "false", '"a'), ("y", "false", "1"))
    text = f"{OPEN}\n{one}\n{CLOSE}"
    call = ToolCall("f", '{"x": "\\"a", "y": 1}')
    for chunks in cuts(text, 1):
        assert read(chunks) == [call]


def test_a_long_value_is_read_once() -> None:
    value = "x<" * 200_000
    tags = json.dumps(END * 4000, ensure_ascii=False)
    text = f"{OPEN}\n{invoke('f', ('x', 'true', value), ('y', 'false', tags))}\n{CLOSE}"
    chunks = [text[start : start + 400] for start in range(0, len(text), 400)]
    (call,) = read(chunks)
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"x": value, "y": END * 4000}


PARTS = [
    OPEN,
    CLOSE,
    f'<{D}invoke name="',
    'f">',
    f"</{D}invoke>",
    f'<{D}parameter name="',
    'k" string="true">',
    'j" string="false">',
    f"</{D}parameter>",
    "\n",
    "\n\n",
    "1",
    '"',
    "\\",
    "<",
    " ",
    ONE,
    invoke("g", ("k", "true", "v")),
    f"{OPEN}{ONE}",
]


@given(
    parts=st.lists(st.sampled_from(PARTS), max_size=14),
    sizes=st.lists(st.integers(1, 9), max_size=60),
)
@example(parts=[OPEN, ONE, " ", OPEN, ONE, CLOSE], sizes=[])
def test_any_text_follows_the_rules(parts: list[str], sizes: list[int]) -> None:
    text, chunks, start = "".join(parts), [], 0
    for size in [*sizes, *[1] * len(text)]:
        chunks.append(text[start : start + size])
        start += size
    want = by_the_rules(text)
    assert read(chunks) == want
    assert read([text]) == want


KEYS = st.text(st.characters(exclude_characters='\n"', exclude_categories=["Cs"]), max_size=5)
ARGUMENTS = st.dictionaries(
    KEYS,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8), st.lists, max_leaves=4
    )
    | st.lists(st.sampled_from([END, f"a{END}b", '"', "\\"])),
    max_size=4,
)


@given(arguments=st.lists(ARGUMENTS, min_size=1, max_size=3))
def test_what_is_written_is_read_again(arguments: list[dict[str, object]]) -> None:
    """Whatever the arguments say, as long as no text of its own spells the end of a value."""
    calls = [
        ToolCall(f"f{place}", json.dumps(one, ensure_ascii=False))
        for place, one in enumerate(arguments)
    ]
    assert read([D.join(written_calls(calls))]) == calls
