"""An encoder file is parsed, never run, and refused in one line where it is damaged."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskside.errors import CheckpointError, InputError
from deskside.layout.folder import BUILTIN
from deskside.text.fixed import FILE, MOST_BYTES, FixedTexts

GOOD = '''
"""An encoder."""
import json
token: str = "<｜User｜>"
REASONING_EFFORT_PROMPTS: Dict[str, str] = {
    "low": "",
    "high": ("Think\\n" "twice.\\n\\n"),
}
DEFAULT_REASONING_EFFORT = "low"
def encode(messages): return json.dumps(messages)
'''


def write(folder: Path, source: str | bytes) -> Path:
    path = folder / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    return path


def refused(folder: Path) -> str:
    started = time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        FixedTexts.open(folder)
    assert time.monotonic() - started < 2
    message = str(caught.value)
    assert message.startswith(str(folder / FILE))
    assert message.isprintable()
    assert len(message) < 500
    return message


def outcome(folder: Path) -> str | None:
    """The message of the refusal, or None where the texts are still texts."""
    try:
        texts = FixedTexts.open(folder)
    except CheckpointError as error:
        return str(error)
    assert all(isinstance(text, str) for text in texts.efforts.values())
    return None


def test_texts_are_read(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    texts = FixedTexts.open(tmp_path)
    assert dict(texts.efforts) == {"low": "", "high": "Think\ntwice.\n\n"}
    assert texts.default == "low"
    assert texts.effort(None) == ""
    assert texts.effort("high") == "Think\ntwice.\n\n"
    with pytest.raises(InputError, match=r"max needs a text of .*py, which does not have it; use"):
        texts.effort("max")


def test_without_a_file_only_low_is_there(tmp_path: Path) -> None:
    texts = FixedTexts.open(tmp_path)
    assert texts.effort(None) == texts.effort("low") == ""
    for effort in ("high", "max"):
        with pytest.raises(InputError, match=rf"{effort} needs .*py, which is missing; use one"):
            texts.effort(effort)


def test_the_preview_is_told_apart(tmp_path: Path) -> None:
    """Its highest text is the later high one: served under the name max it would be a lie."""
    write(tmp_path, 'REASONING_EFFORT_MAX = (\n    "Think\\n"\n    "hard.\\n\\n"\n)\n')
    texts = FixedTexts.open(tmp_path)
    assert texts.effort(None) == ""
    with pytest.raises(InputError, match=r"max needs .* is that of the preview; get the 0731"):
        texts.effort("max")
    write(tmp_path, "x = 1\n")
    with pytest.raises(InputError, match="has no REASONING_EFFORT_PROMPTS"):
        FixedTexts.open(tmp_path).effort("high")


def test_the_model_that_ships_has_three_efforts() -> None:
    texts = FixedTexts.open(BUILTIN / "deskside-mini")
    assert set(texts.efforts) == {"low", "high", "max"}
    assert len(set(texts.efforts.values())) == 3
    assert texts.effort(None) == ""
    assert not texts.thinks, "it was never taught to end a thought"


@pytest.mark.parametrize(
    ("line", "thinks"),
    [("", True), ("DEFAULT_THINKING = True", True), ("DEFAULT_THINKING: bool = False", False)],
)
def test_the_file_may_say_whether_the_model_thinks(tmp_path: Path, line: str, thinks: bool) -> None:
    write(tmp_path, GOOD + line)
    assert FixedTexts.open(tmp_path).thinks is thinks
    write(tmp_path, line)
    assert FixedTexts.open(tmp_path).thinks is thinks
    assert FixedTexts.open(tmp_path / "no folder").thinks


FORM = "response_format_template: str = "


@pytest.mark.parametrize(
    ("template", "around"),
    [("'a:\\n{schema}'", ("a:\n", "")), ("'{{x}} {s}\\nb'", ("{x} ", "\nb")), ("'{s}'", ("", ""))],
)
def test_the_text_about_the_form_of_an_answer(
    tmp_path: Path, template: str, around: tuple[str, str]
) -> None:
    for source in (GOOD, "REASONING_EFFORT_MAX = 'x'\n"):
        write(tmp_path, source + FORM + template)
        assert FixedTexts.open(tmp_path).form == around
        write(tmp_path, source)
        assert FixedTexts.open(tmp_path).form is None


@pytest.mark.parametrize("template", ["''", "'{a}{b}'", "'{a.b}'", "'{a!r}'", "'{a:>9}'", "'{}'"])
def test_a_text_about_the_form_that_is_no_template(tmp_path: Path, template: str) -> None:
    write(tmp_path, GOOD + FORM + template)
    assert "response_format_template must have one field" in refused(tmp_path)
    write(tmp_path, GOOD + FORM + "'{'")
    assert "response_format_template is no template" in refused(tmp_path)
    write(tmp_path, GOOD + FORM + "open('x')")
    assert "response_format_template must be a plain text" in refused(tmp_path)


TOOLS = "TOOLS_TEMPLATE = "


def test_the_text_about_tools_is_cut_where_their_list_belongs(tmp_path: Path) -> None:
    said = (
        '"a {dsml_token}{{x}} {thinking_start_token}\\n"  "{thinking_end_token}{tool_schemas}\\nb"'
    )
    for rest in (GOOD, "", "REASONING_EFFORT_MAX = 'x'"):
        write(tmp_path, f"{TOOLS}{said}\n{rest}")
        texts = FixedTexts.open(tmp_path)
        assert texts.around_tools() == ("a ｜DSML｜{x} <think>\n</think>", "\nb")


def test_without_that_text_there_are_no_tools(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tools need a text of .*py, which is missing; send none"):
        FixedTexts.open(tmp_path).around_tools()
    write(tmp_path, GOOD)
    with pytest.raises(InputError, match=r"tools need a text of .* has no TOOLS_TEMPLATE"):
        FixedTexts.open(tmp_path).around_tools()


PROMPTS = "REASONING_EFFORT_PROMPTS = "


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        ("(", "is not Python"),
        ("\0", "is not Python"),
        (TOOLS + "open('x')", "TOOLS_TEMPLATE must be a plain text"),
        (TOOLS + "'{'", "TOOLS_TEMPLATE is no template"),
        (TOOLS + "''", "TOOLS_TEMPLATE must name tool_schemas once"),
        (TOOLS + "'{tool_schemas}{tool_schemas}'", "TOOLS_TEMPLATE must name tool_schemas once"),
        (TOOLS + "'{tool_schemas.__class__}'", "TOOLS_TEMPLATE is no template"),
        (TOOLS + "'{tool_schemas!r}'", "TOOLS_TEMPLATE is no template"),
        (TOOLS + "'{tool_schemas:>99999999999}'", "TOOLS_TEMPLATE is no template"),
        (TOOLS + "'{}{tool_schemas}'", "TOOLS_TEMPLATE is no template"),
        (PROMPTS + "open('x')", "must be a dict"),
        (PROMPTS + "dict(low='')", "must be a dict"),
        (PROMPTS + "{**others}", "a key of REASONING_EFFORT_PROMPTS must be a plain text"),
        (PROMPTS + "{}", "must have keys"),
        (PROMPTS + "{'low': '', 'low': 'x'}", "each once"),
        (PROMPTS + "{'low': 1}", "must be a plain text"),
        (PROMPTS + "{'low': b''}", "must be a plain text"),
        (PROMPTS + "{1: ''}", "must be a plain text"),
        (PROMPTS + "{'low': 'a' + 'b'}", "must be a plain text"),
        (PROMPTS + "{'low': 'a' * 10**9}", "must be a plain text"),
        (PROMPTS + "{'low': f'{x}'}", "must be a plain text"),
        (PROMPTS + "{'low': NAME}", "must be a plain text"),
        (PROMPTS + "{'low': {'low': ''}}", "must be a plain text"),
        (PROMPTS + "{'low': '\\ud800'}", "must be valid text"),
        (PROMPTS + "{'low': '" + "x" * 20_000 + "'}", "at most 16384 characters"),
        (PROMPTS + "{'low': ''}", "DEFAULT_REASONING_EFFORT must be a plain text"),
        (PROMPTS + "{'low': ''}\nDEFAULT_REASONING_EFFORT = None", "must be a plain text"),
        (PROMPTS + "{'low': ''}\nDEFAULT_REASONING_EFFORT = 'mid'", "'mid', which"),
        (GOOD + PROMPTS + "{'low': 'other'}", "stands twice"),
        (GOOD + "DEFAULT_THINKING = 0", "DEFAULT_THINKING must be True or False"),
        (GOOD + "DEFAULT_THINKING = not 1", "DEFAULT_THINKING must be True or False"),
        (GOOD + "DEFAULT_THINKING = None", "DEFAULT_THINKING must be True or False"),
        ("x = 1\n" * (MOST_BYTES // 6 + 1), f"most is {MOST_BYTES}"),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_damage_is_one_line(tmp_path: Path, source: str | bytes, words: str) -> None:
    write(tmp_path, source)
    assert words in refused(tmp_path)


HOSTILE = {
    "brackets": "x = " + "[" * 50_000,
    "closed": "x = " + "(" * 5_000 + ")" * 5_000,
    "signs": "x = " + "-" * 200_000 + "1",
    "nots": "x = " + "not " * 60_000 + "1",
    "sums": "x = 1" + "+1" * 120_000,
    "attributes": "x = a" + ".a" * 120_000,
    "calls": "x = a" + "()" * 120_000,
    "blocks": "".join(" " * n + "if 1:\n" for n in range(400)),
    "lambdas": "x = " + "lambda:" * 30_000 + "1",
    "conditions": "x = " + "1 if 1 else " * 20_000 + "1",
    "powers": "x = 9" + "**9" * 80_000,
    "digits": "x = " + "9" * 250_000,
    "strings": "x = " + "'a'" * 80_000,
    "escapes": "x = '" + "\\d" * 100_000 + "'",
    "items": "x = [" + "0," * 120_000 + "]",
    "lines": "x=1\n" * 60_000,
    "fstrings": "x = " + "f'{" * 500 + "1" + "}'" * 500,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sources_end_soon(tmp_path: Path, name: str) -> None:
    """In a process of its own: a parser that overflows its stack would take the tests with it."""
    write(tmp_path, HOSTILE[name])
    code = f"""
import resource, sys, warnings
from pathlib import Path
from deskside.errors import CheckpointError
from deskside.text.fixed import FixedTexts
warnings.simplefilter("error")
try:
    FixedTexts.open(Path({str(tmp_path)!r}))
except CheckpointError as error:
    print(error)
status = Path("/proc/self/status").read_text()  # ru_maxrss also holds what the parent had
assert int(status.split("VmHWM:")[1].split()[0]) < 500_000
assert resource.getrusage(resource.RUSAGE_SELF).ru_utime < 5
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert not done.stderr
    assert done.stdout.count("\n") <= 1


def test_nothing_is_run_or_imported(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    write(tmp_path, f"open({str(witness)!r}, 'w')\nimport no_such_module\n{GOOD}")
    assert FixedTexts.open(tmp_path).effort("high")
    assert not witness.exists()
    code = f"""
import sys
from pathlib import Path
from deskside.text.fixed import FixedTexts
bad = []
sys.addaudithook(lambda event, args: bad.append(event) if event == "exec" else None)
FixedTexts.open(Path({str(tmp_path)!r}))
sys.exit(str(bad) if bad else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_places_that_are_no_file(tmp_path: Path) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside.py"
    folder.mkdir()
    outside.write_text(GOOD)
    path = write(folder, GOOD)
    path.unlink()
    path.mkdir()
    assert "no regular file" in refused(folder)
    path.rmdir()
    path.symlink_to(outside)
    assert "leads outside the folder" in refused(folder)
    path.unlink()
    path.symlink_to(path.name)
    assert "cannot be read" in refused(folder)
    path.unlink()
    path.symlink_to("nowhere.py")
    assert "cannot be read" in refused(folder)
    path.unlink()
    (folder / "real.py").write_text(GOOD)
    path.symlink_to("../real.py")
    assert FixedTexts.open(folder).effort("high")


@given(data=st.data())
def test_any_change_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A flipped, lost or added piece gives texts or one line, never another exception."""
    source = bytearray(GOOD.encode())
    at = data.draw(st.integers(0, len(source) - 1))
    length = data.draw(st.integers(0, 12))
    source[at : at + length] = data.draw(st.binary(max_size=6))
    folder = tmp_path_factory.mktemp("changed")
    write(folder, bytes(source))
    message = outcome(folder)
    assert message is None or message.isprintable()


def test_every_bit_of_the_shipped_file_may_flip(tmp_path: Path) -> None:
    source = (BUILTIN / "deskside-mini" / FILE).read_bytes()
    draw = random.Random(5)
    caught = 0
    for _ in range(200):
        changed = bytearray(source)
        changed[draw.randrange(len(source))] ^= 1 << draw.randrange(8)
        write(tmp_path, bytes(changed))
        message = outcome(tmp_path)
        caught += message is not None
        assert message is None or message.isprintable()
    assert caught > 20
