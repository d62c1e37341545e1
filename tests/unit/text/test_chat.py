"""Conversations become prompts: exact texts, and no control token that a message could make."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken

from deskside.errors import CheckpointError, InputError
from deskside.layout.folder import BUILTIN
from deskside.text.chat import ChatEncoder, Prompt
from deskside.text.chat_options import ChatOptions
from deskside.text.fixed import FixedTexts
from deskside.text.messages import Message, Role
from deskside.text.reasoning import Channel
from deskside.text.tokenizer import BOS, EOS, Tokenizer
from deskside.text.tools import DSML, Tool, ToolCall, written_calls
from tests.unit.text.conftest import small_tokenizer

CHAT = ChatOptions(thinking=False)
THINKING = ChatOptions(thinking=True)
KEEPING = ChatOptions(thinking=True, keep_reasoning=True)
U, A, T, E = "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"
EFFORTS = {"low": "", "high": "Think!\n\n", "max": f"Use ｜DSML｜ and {T}!\n\n"}
CONTROLS = (U, A, E, "｜DSML｜", "<｜▁pad▁｜>", "<|EOT|>", "<dsml:", "<｜place▁holder▁no▁7｜>")


def system(text: str) -> Message:
    return Message(Role.SYSTEM, text)


def user(text: str) -> Message:
    return Message(Role.USER, text)


def assistant(text: str, reasoning: str = "", *, prefix: bool = False) -> Message:
    return Message(Role.ASSISTANT, text, reasoning, prefix)


def chat_tokenizer() -> tokenizers.Tokenizer:
    inner = small_tokenizer()
    inner.add_tokens([AddedToken(name, special=False, normalized=False) for name in CONTROLS])
    return inner


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(chat_tokenizer())


@pytest.fixture(scope="session")
def encoder(tokenizer: Tokenizer) -> ChatEncoder:
    texts = FixedTexts("encoder.py", EFFORTS, tools=(f"Write <{DSML}tool_calls>:\n", "\nEnd."))
    return ChatEncoder(tokenizer, texts, "model")


@pytest.fixture(scope="session")
def mini() -> tuple[Tokenizer, ChatEncoder]:
    folder = BUILTIN / "deskside-mini"
    tokenizer = Tokenizer.open(folder)
    return tokenizer, ChatEncoder.open(folder, tokenizer)


def called(text: str, *ids: str) -> Message:
    calls = tuple(ToolCall(f"f{name}", '{"k": "v", "n": 1}', name) for name in ids)
    return Message(Role.ASSISTANT, text, calls=calls)


def result(text: str, answers: str) -> Message:
    return Message(Role.TOOL, text, answers=answers)


ADD, NOW = {"name": "add", "parameters": {"b": "ü", "a": 1}}, {"name": "now"}
TOOLS = ChatOptions(thinking=False, tools=(Tool("add", ADD), Tool("now", NOW)))
OFFER = (
    f"\n\nWrite <{DSML}tool_calls>:\n"
    '{"name": "add", "parameters": {"b": "ü", "a": 1}}\n{"name": "now"}\nEnd.'
)
WRITTEN = DSML.join(written_calls(called("", "1", "2").calls))
R1, R2 = "<tool_result>r1</tool_result>", "<tool_result>r2</tool_result>"
TALK = [user("q"), assistant("a", "r"), user("q2"), assistant("a2", "r2"), user("q3")]
CASES = [
    ([user("Hi")], CHAT, f"{U}Hi{A}{E}"),
    ([user("Hi")], THINKING, f"{U}Hi{A}{T}"),
    ([system("S"), user("Hi")], THINKING, f"S{U}Hi{A}{T}"),
    ([system("S"), system("S2"), user("Hi")], CHAT, f"SS2{U}Hi{A}{E}"),
    ([user("a"), system("S"), user("b")], CHAT, f"{U}aS{U}b{A}{E}"),
    ([user("a"), user("b"), user("")], CHAT, f"{U}a\n\nb\n\n{A}{E}"),
    (TALK, CHAT, f"{U}q{A}{E}a{EOS}{U}q2{A}{E}a2{EOS}{U}q3{A}{E}"),
    (TALK, THINKING, f"{U}q{A}{E}a{EOS}{U}q2{A}{E}a2{EOS}{U}q3{A}{T}"),
    (TALK, KEEPING, f"{U}q{A}{T}r{E}a{EOS}{U}q2{A}{T}r2{E}a2{EOS}{U}q3{A}{T}"),
    (TALK[:4], THINKING, f"{U}q{A}{E}a{EOS}{U}q2{A}{T}r2{E}a2{EOS}{A}{T}"),
    ([assistant("a", "r"), user("q")], THINKING, f"a{EOS}{U}q{A}{T}"),
    ([system("S")], THINKING, f"S{A}{T}"),
    ([system("S")], CHAT, f"S{A}{E}"),
    ([user("q"), system("S")], THINKING, f"{U}qS{A}{T}"),
    ([user("q"), assistant("a", prefix=True)], CHAT, f"{U}q{A}{E}a"),
    ([user("q"), assistant("a", "r", prefix=True)], THINKING, f"{U}q{A}{T}r{E}a"),
    ([system("S"), user("Hi")], ChatOptions(effort="low"), f"S{U}Hi{A}{T}"),
    ([system("S"), user("Hi")], ChatOptions(effort="high"), f"Think!\n\nS{U}Hi{A}{T}"),
    ([user("Hi")], ChatOptions(effort="max"), f"Use ｜DSML｜ and {T}!\n\n{U}Hi{A}{T}"),
    ([user("Hi")], ChatOptions(thinking=False, effort="max"), f"{U}Hi{A}{E}"),
    ([user("Hi")], TOOLS, f"{OFFER}{U}Hi{A}{E}"),
    ([system("S"), user("Hi")], TOOLS, f"S{OFFER}{U}Hi{A}{E}"),
    ([user("a"), system("S"), system("T"), user("b")], TOOLS, f"{U}aS{OFFER}T{U}b{A}{E}"),
    (
        TALK,
        ChatOptions(tools=TOOLS.tools),
        OFFER + f"{U}q{A}{T}r{E}a{EOS}{U}q2{A}{T}r2{E}a2{EOS}{U}q3{A}{T}",
    ),
    ([user("q"), called("a", "1", "2")], CHAT, f"{U}q{A}{E}a{WRITTEN}{EOS}{A}{E}"),
    (
        [user("q"), called("", "1", "2"), result("r2", "2"), result("r1", "1"), user("more")],
        THINKING,
        f"{U}q{A}{E}{WRITTEN}{EOS}{U}{R1}\n\n{R2}\n\nmore{A}{T}",
    ),
    (
        [
            user("q"),
            called("", "1", "2"),
            user("x"),
            result("r2", "2"),
            user("y"),
            result("r1", "1"),
        ],
        CHAT,
        f"{U}q{A}{E}{WRITTEN}{EOS}{U}x\n\n{R1}\n\ny\n\n{R2}{A}{E}",
    ),
    (
        [user("q"), called("", "1", "2"), result("r1", "?"), result("r2", "1")],
        CHAT,
        f"{U}q{A}{E}{WRITTEN}{EOS}{U}{R1}\n\n{R2}{A}{E}",
    ),
    ([result("r1", "1")], CHAT, f"{U}{R1}{A}{E}"),
]


def test_a_request_decides_before_the_checkpoint(tokenizer: Tokenizer) -> None:
    for thinks in (True, False):
        texts = FixedTexts("encoder.py", EFFORTS, thinks=thinks)
        encoder = ChatEncoder(tokenizer, texts, "model")
        texts_of = [
            encoder.render([user("Hi")], ChatOptions(asked)).text for asked in (None, True, False)
        ]
        shown = [text.rpartition(A)[2] for text in texts_of]
        assert shown == [T if thinks else E, T, E]


@pytest.mark.parametrize(("messages", "options", "text"), CASES)
def test_exact_texts(
    encoder: ChatEncoder,
    tokenizer: Tokenizer,
    messages: list[Message],
    options: ChatOptions,
    text: str,
) -> None:
    prompt = encoder.render(messages, options)
    assert prompt.text == BOS + text
    # No message here spells a control token, so the library reads the same ids from the text.
    assert prompt.ids == tokenizer.encode(prompt.text)


@pytest.mark.parametrize(("messages", "options", "text"), CASES)
def test_the_start_is_read_from_the_prompt(
    encoder: ChatEncoder, messages: list[Message], options: ChatOptions, text: str
) -> None:
    inside = text.endswith(T)
    start = Channel.REASONING if inside else Channel.CONTENT
    prompt = encoder.render(messages, options)
    assert prompt.start is start
    assert prompt.start.stop_after == (E if inside else "")


def by_the_rules(messages: list[Message], options: ChatOptions) -> str:
    """State the published rules message by message; the last one is a user's."""
    thinking, drop = options.thinking, not options.keep_reasoning
    turns: list[Message] = []
    for message in messages:
        if turns and message.role is turns[-1].role is Role.USER:
            turns[-1] = user(f"{turns[-1].content}\n\n{message.content}")
        else:
            turns.append(message)
    last = max(n for n, turn in enumerate(turns) if turn.role is Role.USER)
    text = BOS + (EFFORTS[options.effort or "low"] if thinking else "")
    for n, turn in enumerate(turns):
        if turn.role is Role.SYSTEM:
            text += turn.content
        elif turn.role is Role.USER:
            text += U + turn.content
        else:
            shown = f"{turn.reasoning}{E}" if thinking and (not drop or n > last) else ""
            text += shown + turn.content + EOS
        if turn.role is Role.USER and (n + 1 == len(turns) or turns[n + 1].role is Role.ASSISTANT):
            text += A + (T if thinking and (not drop or n >= last) else E)
    return text


WORDS = st.text("ab \n<é", max_size=4)
TURNS = st.one_of(
    st.builds(system, WORDS), st.builds(user, WORDS), st.builds(assistant, WORDS, WORDS)
)


@given(
    turns=st.lists(TURNS, max_size=7),
    last=WORDS,
    options=st.builds(
        ChatOptions, st.booleans(), st.sampled_from([None, "high", "max"]), st.booleans()
    ),
)
def test_any_conversation_follows_the_rules(
    encoder: ChatEncoder,
    tokenizer: Tokenizer,
    turns: list[Message],
    last: str,
    options: ChatOptions,
) -> None:
    prompt = encoder.render([*turns, user(last)], options)
    assert prompt.text == by_the_rules([*turns, user(last)], options)
    assert prompt.ids == tokenizer.encode(prompt.text)


ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SPELLED = st.lists(
    st.one_of(
        st.sampled_from([BOS, EOS, T, *CONTROLS]),
        st.sampled_from(
            ["<", "｜", "User", "think>", "</", "|", "▁", "<|User|>", "＜think＞", " "]
        ),
        ANY,
    ),
    max_size=6,
).map("".join)


def controls_of(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    known = set(tokenizer.controls.values())
    return [token for token in prompt.ids if token in known]


@given(text=SPELLED)
@example(text=f"{E}{A}{T}{EOS}{BOS}{U}")
@example(text=f"\ufeff\0{E}\0<\u200bthink>\u202e\uffff")
def test_no_text_makes_a_control_token(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_plain(text)
    assert not set(ids) & set(tokenizer.controls.values())
    assert tokenizer.decode(ids) == text


@given(
    texts=st.tuples(SPELLED, SPELLED, SPELLED, SPELLED), options=st.sampled_from([CHAT, KEEPING])
)
def test_what_messages_say_changes_only_their_own_place(
    encoder: ChatEncoder, tokenizer: Tokenizer, texts: tuple[str, ...], options: ChatOptions
) -> None:
    said = [system(texts[0]), user(texts[1]), assistant(texts[2], texts[3]), user(texts[0])]
    silent = [system(""), user(""), assistant(""), user("")]
    prompt, frame = encoder.render(said, options), encoder.render(silent, options)
    assert controls_of(tokenizer, prompt) == list(frame.ids)
    assert prompt.start is frame.start
    shown = b"".join(map(tokenizer.token_bytes, prompt.ids)).decode()
    assert shown == prompt.text


@given(text=SPELLED)
def test_the_model_that_ships_keeps_text_and_control_apart(
    mini: tuple[Tokenizer, ChatEncoder], text: str
) -> None:
    tokenizer, encoder = mini
    prompt = encoder.render([user(text)], ChatOptions())
    want = [tokenizer.bos, *(tokenizer.controls[name] for name in (U, A, E))]
    assert controls_of(tokenizer, prompt) == want
    assert prompt.ids[2:-2] == tokenizer.encode_plain(text)
    assert tokenizer.decode(prompt.ids[2:-2]) == text


def test_each_effort_of_the_model_that_ships_is_another_prompt(
    mini: tuple[Tokenizer, ChatEncoder],
) -> None:
    _, encoder = mini
    efforts = (None, "low", "high", "max")
    prompts = [encoder.render([user("hi")], ChatOptions(effort=effort)) for effort in efforts]
    assert prompts[0] == encoder.render([user("hi")], CHAT), "it does not think by default"
    assert len({prompt.ids for prompt in prompts}) == 4


def test_text_without_control_tokens_is_encoded_as_ever(tokenizer: Tokenizer) -> None:
    for text in ("def f(n):\n    return 1\n", "größer als πr² 你好 🙂", "", "a" * 1000):
        assert tokenizer.encode_plain(text) == tokenizer.encode(text)


def test_an_effort_without_its_text_is_refused(tokenizer: Tokenizer) -> None:
    encoder = ChatEncoder(tokenizer, FixedTexts("model/encoder.py"), "model")
    assert encoder.render([user("Hi")], THINKING).text == f"{BOS}{U}Hi{A}{T}"
    off = ChatOptions(thinking=False, effort="high")
    assert encoder.render([user("Hi")], off).text == f"{BOS}{U}Hi{A}{E}"
    with pytest.raises(InputError, match=r"effort high needs a text of model/encoder\.py"):
        encoder.render([user("Hi")], ChatOptions(effort="high"))


def test_nothing_said_is_refused(encoder: ChatEncoder) -> None:
    with pytest.raises(InputError, match="at least one message"):
        encoder.render([], CHAT)
    with pytest.raises(InputError, match="not valid UTF-8"):
        encoder.render([user("\ud800")], CHAT)


def test_a_tokenizer_without_the_format_has_no_chat(tmp_path: Path) -> None:
    tokenizer = Tokenizer(small_tokenizer())
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: control token .*User.* missing"):
        ChatEncoder.open(tmp_path, tokenizer)


def test_a_control_token_that_text_can_spell_is_refused() -> None:
    inner = chat_tokenizer()
    inner.add_tokens([AddedToken("els", special=False)])  # also made by the merges
    assert inner.model.token_to_id("els") is not None
    with pytest.raises(CheckpointError, match="control token els is also an entry"):
        Tokenizer(inner)


@given(text=SPELLED, name=st.sampled_from(["f", "g h"]))
def test_what_calls_tools_and_results_say_stays_text(
    encoder: ChatEncoder, tokenizer: Tokenizer, text: str, name: str
) -> None:
    """Also where an argument spells the end of its own tag."""

    def talk(said: str) -> Prompt:
        arguments = json.dumps({"k": said, "l": [said]}, ensure_ascii=False)
        call = Message(Role.ASSISTANT, said, calls=(ToolCall(name, arguments, "1"),))
        tool = Tool("add", {"name": "add", "description": said})
        messages = [user("q"), call, result(said, "1")]
        return encoder.render(messages, ChatOptions(tools=(tool,)))

    assert controls_of(tokenizer, talk(text)) == controls_of(tokenizer, talk(""))
    shown = b"".join(map(tokenizer.token_bytes, talk(text).ids)).decode()
    assert shown == talk(text).text


def test_tools_need_a_token_and_a_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    bare = ChatEncoder(tokenizer, FixedTexts("model/encoder.py"), "model")
    with pytest.raises(InputError, match=r"tools need a text of model/encoder\.py"):
        bare.render([user("Hi")], TOOLS)
    assert bare.render([called("", "1", "2")], CHAT).text == f"{BOS}{WRITTEN}{EOS}{A}{E}"
    inner = small_tokenizer()
    inner.add_tokens([AddedToken(one, special=False) for one in CONTROLS if one != DSML])
    old = ChatEncoder(Tokenizer(inner), FixedTexts("e", tools=("", "")), "model")
    for messages, options in (([user("Hi")], TOOLS), ([called("", "1")], CHAT)):
        with pytest.raises(InputError, match=f"tokenizer has no token {DSML}"):
            old.render(messages, options)


def test_the_model_that_ships_offers_tools(mini: tuple[Tokenizer, ChatEncoder]) -> None:
    tokenizer, encoder = mini
    prompt = encoder.render([user("Hi")], TOOLS)
    assert "\n".join(tool.line for tool in TOOLS.tools) in prompt.text
    assert prompt.ids == tokenizer.encode(prompt.text)
    assert prompt.ids.count(tokenizer.controls[DSML]) == 6


SCHEMA = {"type": "object", "properties": {"größe": {"const": "<｜User｜>"}}}


def test_the_form_of_an_answer_is_told_where_there_are_words_for_it(tokenizer: Tokenizer) -> None:
    """Behind the system message and the tools; what the schema says stays plain text."""
    texts = FixedTexts("e", EFFORTS, tools=("Tools:", "."), form=("Form:\n", "!"))
    encoder = ChatEncoder(tokenizer, texts, "model")
    form = f"\n\nForm:\n{json.dumps(SCHEMA, ensure_ascii=False)}!"
    tools = f"\n\nTools:{TOOLS.tools[0].line}\n{TOOLS.tools[1].line}."
    plain = ChatOptions(thinking=False, schema=SCHEMA)
    both = ChatOptions(thinking=False, schema=SCHEMA, tools=TOOLS.tools)
    said = [system("S"), user("Hi"), assistant("Yes"), system("again"), user("Go")]
    rest = f"{U}Hi{A}{E}Yes{EOS}again{U}Go{A}{E}"
    found = encoder.render(said, plain)
    assert found.text == f"{BOS}S{form}{rest}"
    assert controls_of(tokenizer, found) == controls_of(tokenizer, encoder.render(said, CHAT))
    assert encoder.render(said, both).text == f"{BOS}S{tools}{form}{rest}"
    assert encoder.render([user("Hi")], plain).text == f"{BOS}{form}{U}Hi{A}{E}"
    silent = ChatEncoder(tokenizer, FixedTexts("e", EFFORTS), "model")
    assert silent.render(said, plain) == silent.render(said, CHAT)
