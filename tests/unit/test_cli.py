"""The command line with a small stand-in for the model: words in, text and exit code out."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from deskside.cli import main
from deskside.config.engine import EngineOptions
from deskside.core import Acceptance, FinishReason, SamplingParams
from deskside.errors import CapacityError, CheckpointError

ANSWER = SimpleNamespace(
    text="é! done",
    token_ids=(5, 6, 7),
    prompt_tokens=4,
    finish=FinishReason.STOP,
    seed=11,
    prefill_s=0.5,
    decode_s=0.25,
    first_token_s=0.6,
    acceptance=Acceptance(steps=2, verified=4, accepted=1),
)


@dataclass
class FakeModel:
    """Streams three pieces and remembers what it was asked."""

    fault: BaseException | None = None
    fits: bool = True
    asked: dict[str, Any] = field(default_factory=dict)
    closed: bool = False

    def open(self, model: str, options: EngineOptions, progress: object = None) -> Self:
        self.asked |= {"model": model, "options": options}
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def plan(self, model: str, options: EngineOptions) -> Any:
        self.asked |= {"model": model, "options": options}
        return SimpleNamespace(
            fits=self.fits, report=lambda: "weights 1 MiB", to_json=lambda: {"fits": self.fits}
        )

    def stream(self, prompt: str, params: SamplingParams) -> Iterator[Any]:
        self.asked |= {"prompt": prompt, "params": params}
        yield SimpleNamespace(text="é!", tokens=(5,), result=None)
        if self.fault is not None:
            raise self.fault
        yield SimpleNamespace(text="", tokens=(6,), result=None)
        yield SimpleNamespace(text=" done", tokens=(7,), result=ANSWER)


@dataclass
class Loaded:
    """Opens to a model whose `plan` is the plan it was loaded by."""

    fake: FakeModel

    def open(self, model: str, options: EngineOptions, progress: object) -> Any:
        loaded = self.fake.open(model, options)
        view = SimpleNamespace(stream=loaded.stream, plan=SimpleNamespace(kv_tokens=4096))

        class Opened:
            def __enter__(self) -> Any:
                return view

            def __exit__(self, *_: object) -> None:
                loaded.closed = True

        return Opened()

    def plan(self, model: str, options: EngineOptions) -> Any:
        return self.fake.plan(model, options)


@pytest.fixture
def fake() -> FakeModel:
    return FakeModel()


def call(fake: FakeModel, *words: str) -> int:
    return main(words, Loaded(fake))


def refused(capsys: pytest.CaptureFixture[str], fake: FakeModel, *words: str) -> str:
    """Run words that must be refused, and return the one line that says so."""
    assert call(fake, *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("deskside: error: ")
    assert captured.err.count("\n") == 1
    assert fake.asked == {}
    return captured.err.removeprefix("deskside: error: ").strip()


def test_text_then_one_line(fake: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(fake, "run", "def f") == 0
    captured = capsys.readouterr()
    assert captured.out == "é! done\n"
    assert captured.err == (
        "prompt 4 tokens, output 3 tokens; prefill 8.0 tok/s, decode 8.0 tok/s; "
        "accepted 25.0% of 4 proposals, 1.00 tokens a step\n"
    )
    assert fake.asked["prompt"] == "def f"
    assert fake.asked["model"] == "deskside-mini"
    assert fake.asked["options"] == EngineOptions()
    assert fake.asked["params"] == SamplingParams(temperature=0.0)
    assert fake.closed


def test_a_terminal_gets_the_line_too(
    fake: FakeModel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert call(fake, "run", "def f") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("é! done\nprompt 4 tokens")
    assert captured.err == ""


def test_quiet_is_the_text_alone(fake: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(fake, "run", "--quiet", "def f") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("é! done", "")


def test_json_is_one_object(fake: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(fake, "run", "--json", "def f", "--model", "folder") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out) == {
        "model": "folder",
        "text": "é! done",
        "token_ids": [5, 6, 7],
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "finish_reason": "stop",
        "seed": 11,
        "prefill_tokens_per_s": 8.0,
        "decode_tokens_per_s": 8.0,
        "time_to_first_token_s": 0.6,
        "decode_steps": 2,
        "verified_proposals": 4,
        "accepted_proposals": 1,
        "drafting_pauses": 0,
        "drafting_probes": 0,
        "kv_tokens": 4096,
    }


def test_every_option_arrives(fake: FakeModel) -> None:
    words = (
        "run p --temperature 0.7 --top-p 0.9 --top-k 40 --seed 3 --max-tokens 9 --stop [END] "
        "--stop - --threads 2 --kv-tokens 512 --kv-format float32 --numerics exact "
        "--prefill-chunk 128 --step-tokens 64 --max-running 2 --kernels plain --model m"
    )
    assert call(fake, *words.split()) == 0
    assert fake.asked["params"] == SamplingParams(
        temperature=0.7, top_p=0.9, top_k=40, seed=3, max_tokens=9, stop=("[END]", "-")
    )
    assert fake.asked["options"] == EngineOptions(
        threads=2,
        kv_tokens=512,
        kv_format="float32",
        numerics="exact",
        prefill_chunk=128,
        step_tokens=64,
        max_running=2,
        kernels="plain",
    )
    assert fake.asked["model"] == "m"


def test_flag_beats_variable_beats_file(
    fake: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "options.toml"
    path.write_text("threads = 1\nkv_tokens = 1\n".replace("_", "-") + "max-running = 1\n")
    monkeypatch.setenv("DESKSIDE_CONFIG", str(path))
    monkeypatch.setenv("DESKSIDE_KV_TOKENS", "2")
    monkeypatch.setenv("DESKSIDE_MAX_RUNNING", "2")
    assert call(fake, "run", "p", "--max-running", "3") == 0
    assert fake.asked["options"] == EngineOptions(threads=1, kv_tokens=2, max_running=3)


def test_file_options_of_other_commands_are_left_alone(
    fake: FakeModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "options.toml"
    path.write_text('temperature = 0.5\nstop = ["a"]\nthreads = 3\n')
    assert call(fake, "plan", "--config", str(path)) == 0
    assert fake.asked["options"].threads == 3
    assert call(fake, "run", "p", "--config", str(path)) == 0
    assert fake.asked["params"].stop == ("a",)


def test_prompt_from_file(fake: FakeModel, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes("größe\r\n".encode())
    assert call(fake, "run", "--file", str(path)) == 0
    assert fake.asked["prompt"] == "größe\r\n"


@pytest.mark.parametrize("words", [["-"], ["--file", "-"], ["--quiet", "-"]])
def test_prompt_from_standard_input(
    fake: FakeModel, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("x é\n".encode())))
    assert call(fake, "run", *words) == 0
    assert fake.asked["prompt"] == "x é\n"


def test_a_prompt_may_begin_with_dashes(fake: FakeModel) -> None:
    assert call(fake, "run", "--", "--model") == 0
    assert fake.asked["prompt"] == "--model"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no prompt: give it as an argument, with --file PATH, or - for stdin"),
        ([""], "the prompt is empty: there is nothing to continue"),
        (["a", "--file", "b"], "the prompt is given twice: use one of argument, --file and -"),
        (["a", "-"], "the prompt is given twice: use one of argument, --file and -"),
        (["--file", "b", "-"], "the prompt is given twice: use one of argument, --file and -"),
        (["a", "b"], "Unused Tokens: ['b']."),
        (["\udcff"], "the prompt is not valid UTF-8 (character 0)"),
        (["a", "--stop", "\udcff"], "--stop is not valid UTF-8 (character 0)"),
        (["--file", "/nonexistent"], "--file /nonexistent: cannot be read (No such file"),
        (["--file", "/"], "--file /: cannot be read (Is a directory)"),
        (["a", "--quiet", "--json"], "--quiet and --json exclude each other: give one of them"),
        (["a", "--sto", "x"], "Unknown option: --sto. Did you mean --stop?"),
        (["a", "--threads", "x"], "Invalid value for --threads: unable to convert"),
        (["a", "--threads", "0"], "--threads must be a whole number from 1, got 0"),
        (["a", "--numerics", "quick"], 'Invalid value "quick" for --numerics. Choose from:'),
        (["a", "--temperature", "-1"], "temperature must lie in [0, 100], got -1.0"),
        (["a", "--temperature", "nan"], "temperature must lie in [0, 100], got nan"),
        (["a", "--top-p", "0"], "top-p must lie in (0, 1], got 0.0"),
        (["a", "--top-k", "-1"], "top-k must be 0 (off) or positive, got -1"),
        (["a", "--max-tokens", "0"], "max-tokens must be at least 1, got 0"),
        (["a", "--seed", "-1"], "seed must lie in [0, 2^63), got -1"),
        (["a", "--stop", ""], "stop must not hold an empty string"),
        (["a", "--config", "/none"], "--config /none: cannot be read"),
    ],
)
def test_bad_words(
    fake: FakeModel, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert refused(capsys, fake, "run", *words).startswith(message)


def test_unknown_command(fake: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, fake, "rum").startswith('Unknown command "rum". Did you mean "run"?')


def test_bad_variable_is_named(
    fake: FakeModel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESKSIDE_THREADS", "many")
    assert "from DESKSIDE_THREADS" in refused(capsys, fake, "run", "p")


def test_invalid_bytes_in_a_file(
    fake: FakeModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"ok\xff")
    assert refused(capsys, fake, "run", "--file", str(path)) == (
        f"{path} is not valid UTF-8 (byte 2)"
    )


@pytest.mark.parametrize(
    ("fault", "code", "line"),
    [
        (CheckpointError("model.safetensors: header is cut"), 2, "model.safetensors: header"),
        (CapacityError("need 4 pages,\n have 2"), 3, "need 4 pages, have 2"),
        (ValueError("odd"), 1, "internal fault: ValueError: odd (--debug shows where)"),
    ],
)
def test_faults_end_in_one_line(
    capsys: pytest.CaptureFixture[str], fault: BaseException, code: int, line: str
) -> None:
    fake = FakeModel(fault=fault)
    assert call(fake, "run", "p") == code
    captured = capsys.readouterr()
    assert captured.out == "é!\n"  # the text so far, and its line is closed
    assert captured.err.startswith(f"deskside: error: {line}")
    assert captured.err.count("\n") == 1
    assert fake.closed


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(FakeModel(fault=ValueError("odd")), "run", "p", "--debug") == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(("fits", "code"), [(True, 0), (False, 3)])
def test_plan(capsys: pytest.CaptureFixture[str], fits: bool, code: int) -> None:
    fake = FakeModel(fits=fits)
    assert call(fake, "plan", "--model", "m", "--kv-tokens", "99") == code
    assert capsys.readouterr().out == "weights 1 MiB\n"
    assert fake.asked == {"model": "m", "options": EngineOptions(kv_tokens=99)}
    assert call(fake, "plan", "--json") == code
    assert json.loads(capsys.readouterr().out) == {"fits": fits}


def test_version(fake: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(fake, "--version") == 0
    assert capsys.readouterr().out.startswith("deskside ")


@pytest.mark.parametrize("words", [[], ["--help"], ["run", "--help"], ["plan", "--help"]])
def test_help(fake: FakeModel, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert call(fake, *words) == 0
    page = capsys.readouterr().out
    assert page.startswith("Usage: deskside")
    assert "DESKSIDE_KV_TOKENS" in page
    assert page.isascii()
    if words == ["run", "--help"]:
        assert "--kv-tokens N|auto" in page
        assert "--numerics fast|reference|exact" in page


@pytest.mark.parametrize("stop", ["END", "a b", "[1]", '["a"]', "{}", "-x", "--", "é🙂", "\n\n"])
def test_stop_strings_arrive_as_they_are(
    fake: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    assert call(fake, "run", "p", f"--stop={stop}") == 0
    assert fake.asked["params"].stop == (stop,)
    path = tmp_path / "options.toml"
    path.write_text(f"stop = [{json.dumps(stop, ensure_ascii=False)}, 'two']", encoding="utf-8")
    assert call(fake, "run", "p", "--config", str(path)) == 0
    assert fake.asked["params"].stop == (stop, "two")
    monkeypatch.setenv("DESKSIDE_STOP", stop)
    assert call(fake, "run", "p") == 0
    assert fake.asked["params"].stop == (stop,)


@pytest.mark.parametrize(
    "prompt", ["[1, 2]", '{"a": 1}', "@file", "a\nb", " ", "-1", "None", "--", "\x00"]
)
def test_prompts_arrive_as_they_are(fake: FakeModel, prompt: str) -> None:
    assert call(fake, "run", "--", prompt) == 0
    assert fake.asked["prompt"] == prompt


LOSS = "deskside: warning: cores are few"


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ([], [LOSS]),
        (["--debug"], ["deskside: a fault", LOSS]),
        (
            ["--verbose"],
            ["deskside: a choice", "deskside: a fault", LOSS, "deskside: a core"],
        ),
    ],
)
def test_the_log_is_shown_where_it_is_wanted(
    flags: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    class Logging(FakeModel):
        def stream(self, prompt: str, params: SamplingParams) -> Iterator[Any]:
            logging.getLogger("deskside.engine").info("a choice")
            logging.getLogger("deskside.engine").error("a fault")
            logging.getLogger("deskside.machine").warning("cores are few")
            logging.getLogger("deskside.machine").info("a core")
            return super().stream(prompt, params)

    assert main(["run", "p", "--quiet", *flags], Loaded(Logging())) == 0
    assert capsys.readouterr().err.splitlines() == shown
