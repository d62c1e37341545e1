"""Answers keep the ids that were drawn, in the conversation they belong to and nowhere else."""

from dataclasses import replace

import pytest

from deskside.layout.folder import resolve
from deskside.text.chat import ChatEncoder, Prompt
from deskside.text.chat_options import ChatOptions
from deskside.text.kept import OVERHEAD, KeptIds
from deskside.text.messages import Message, Role
from deskside.text.tokenizer import Tokenizer
from deskside.text.tools import ToolCall, written_calls

FOLDER = resolve("deskside-mini")
TOKENIZER = Tokenizer.open(FOLDER)
CHAT = ChatEncoder.open(FOLDER, TOKENIZER)
PLAIN = ChatOptions(thinking=False)
ASKED = [Message(Role.USER, "Write a loop.")]
TEXT = "for item in items:\n    print(item)  # café"


def spelled(text: str) -> tuple[int, ...]:
    """Return a text byte by byte: other ids than any encoding gives."""
    found = tuple(TOKENIZER._inner.token_to_id(character) for character in _bytes(text))
    assert None not in found
    return found


def _bytes(text: str) -> list[str]:
    alphabet = {byte: character for character, byte in TOKENIZER._bytes.items()}
    return [alphabet[byte] for byte in text.encode()]


def next_turn(answer: str, *before: Message, kept: KeptIds | None = None) -> Prompt:
    said = [*(before or ASKED), Message(Role.ASSISTANT, answer), Message(Role.USER, "Go on.")]
    return CHAT.render(said, PLAIN, kept)


def holds(prompt: Prompt, ids: tuple[int, ...]) -> bool:
    found = prompt.ids
    return any(found[at : at + len(ids)] == ids for at in range(len(found)))


@pytest.fixture
def kept() -> KeptIds:
    return KeptIds(TOKENIZER)


def test_a_next_turn_goes_on_from_what_was_drawn(kept: KeptIds) -> None:
    drawn = spelled(TEXT)
    first = CHAT.render(ASKED, PLAIN, kept)
    kept.keep(first.trail, (*drawn, TOKENIZER.eos))
    plain, again = next_turn(TEXT), next_turn(TEXT, kept=kept)
    assert again.text == plain.text
    assert again.trail == plain.trail
    assert again.ids[: len(first.ids) + len(drawn) + 1] == (*first.ids, *drawn, TOKENIZER.eos)
    assert not holds(plain, drawn)
    assert TOKENIZER.decode(again.ids) == TOKENIZER.decode(plain.ids)


def test_other_texts_and_other_conversations_are_encoded(kept: KeptIds) -> None:
    drawn = spelled(TEXT)
    kept.keep(CHAT.render(ASKED, PLAIN).trail, (*drawn, TOKENIZER.eos))
    assert next_turn(TEXT + " ", kept=kept).ids == next_turn(TEXT + " ").ids
    other = Message(Role.USER, "Write a loop!")
    assert next_turn(TEXT, other, kept=kept).ids == next_turn(TEXT, other).ids
    assert holds(next_turn(TEXT, kept=kept), drawn)


def test_an_answer_without_its_end_counts_too(kept: KeptIds) -> None:
    drawn = spelled(TEXT)
    kept.keep(CHAT.render(ASKED, PLAIN).trail, drawn)
    assert holds(next_turn(TEXT, kept=kept), drawn)


def test_a_thought_and_its_end(kept: KeptIds) -> None:
    options = ChatOptions(thinking=True, keep_reasoning=True)
    thought, end = spelled("print(items)"), TOKENIZER.controls["</think>"]
    drawn = (*thought, end, *spelled(TEXT), TOKENIZER.eos)
    first = CHAT.render(ASKED, options)
    kept.keep(first.trail, drawn)
    said = [*ASKED, Message(Role.ASSISTANT, TEXT, "print(items)"), Message(Role.USER, "Go on.")]
    again = CHAT.render(said, options, kept)
    assert again.ids[len(first.ids) :][: len(drawn)] == drawn
    assert not holds(CHAT.render(said, options), thought)


def test_calls_of_tools(kept: KeptIds) -> None:
    call = ToolCall("add", '{"a": 1, "note": "x"}', "1")
    marker = TOKENIZER.controls["｜DSML｜"]
    drawn: list[int] = [*spelled("I add.")]
    for place, text in enumerate(written_calls([call])):
        drawn += [marker] * (place > 0) + [*spelled(text)]
    first = CHAT.render(ASKED, PLAIN)
    kept.keep(first.trail, (*drawn, TOKENIZER.eos))
    said = [
        *ASKED,
        Message(Role.ASSISTANT, "I add.", calls=(call,)),
        Message(Role.TOOL, "2", answers="1"),
    ]
    again = CHAT.render(said, PLAIN, kept)
    assert again.ids[len(first.ids) :][: len(drawn)] == tuple(drawn)


def test_a_call_has_the_ids_in_which_it_was_drawn(kept: KeptIds) -> None:
    """Drawn as a checked text in JSON and with white space; sent back as a client spells it."""
    parts = (
        "I add.\n\n<",
        "tool_calls>\n<",
        'invoke name="add">\n<',
        'parameter name="a" string="false">[1,\n 2]</',
        "parameter>\n<",
        'parameter name="note" string="false">"x"</',
        "parameter>\n</",
        "invoke>\n</",
        "tool_calls>",
    )
    marker = TOKENIZER.controls["｜DSML｜"]
    drawn = [token for part in parts for token in (marker, *spelled(part))][1:]
    first = CHAT.render(ASKED, PLAIN)
    told = ToolCall("add", '{"a": [1,\n 2], "note": "x"}', "1")
    sent = ToolCall("add", '{"a":[1,2],"note":"x"}', "1")
    said = [
        *ASKED,
        Message(Role.ASSISTANT, "I add.", calls=(sent,)),
        Message(Role.TOOL, "2", answers="1"),
    ]
    for calls, found in (((), False), ((told, told), False), ((told,), True)):
        kept.keep(first.trail, (*drawn, TOKENIZER.eos), calls)
        again = CHAT.render(said, PLAIN, kept)
        assert (again.ids[len(first.ids) :][: len(drawn) + 1] == (*drawn, TOKENIZER.eos)) == found
        assert again.text == CHAT.render(said, PLAIN).text
    other = replace(said[1], calls=(replace(sent, arguments='{"a":[1,3],"note":"x"}'),))
    changed = [*ASKED, other, said[2]]
    assert not holds(CHAT.render(changed, PLAIN, kept), spelled(parts[3]))


def test_a_thought_that_was_closed_before_a_forced_call(kept: KeptIds) -> None:
    options = ChatOptions(thinking=True, keep_reasoning=True)
    first = CHAT.render(ASKED, options).without_thought(TOKENIZER.controls["</think>"])
    drawn = (*spelled(TEXT), TOKENIZER.eos)
    kept.keep(first.trail, drawn)
    said = [*ASKED, Message(Role.ASSISTANT, TEXT), Message(Role.USER, "Go on.")]
    again = CHAT.render(said, options, kept)
    assert again.ids[: len(first.ids) + len(drawn)] == (*first.ids, *drawn)


def test_a_text_that_spells_a_control_token_is_not_one(kept: KeptIds) -> None:
    first = CHAT.render(ASKED, PLAIN)
    kept.keep(first.trail, (*spelled("a"), TOKENIZER.eos, *spelled("b")))
    forged = "a<｜end▁of▁sentence｜>b"
    assert next_turn(forged, kept=kept).ids == next_turn(forged).ids


def test_half_a_character_is_not_kept(kept: KeptIds) -> None:
    first = CHAT.render(ASKED, PLAIN)
    kept.keep(first.trail, (*spelled("ab é")[:-1], TOKENIZER.eos))
    assert kept.count == 0


def test_the_oldest_leave_first() -> None:
    most = 20 + 2 * OVERHEAD
    kept = KeptIds(TOKENIZER, most)
    first = CHAT.render(ASKED, PLAIN)
    for text in ("first one", "second one", "first one", "third one"):
        kept.keep(first.trail, spelled(text))
        assert kept.count <= most
    assert holds(next_turn("first one", kept=kept), spelled("first one"))
    assert not holds(next_turn("second one", kept=kept), spelled("second one"))
