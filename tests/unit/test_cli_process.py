"""How the process ends: signals, a reader that leaves, and how soon help appears.

This file is also the program that the tests start: `python test_cli_process.py run ...` is the
command line with a model that counts slowly and never ends on its own.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from deskside.cli import main

TICK = 0.01


class Counting:
    """Opens to a model that writes `tick` forever and `closed` to standard error at its end."""

    @contextmanager
    def open(self, model: str, options: object, progress: object) -> Iterator[Any]:
        try:
            yield SimpleNamespace(stream=self.stream)
        finally:
            print("closed", file=sys.stderr, flush=True)

    def plan(self, model: str, options: object) -> Any:
        raise NotImplementedError

    def stream(self, prompt: str, params: object) -> Iterator[Any]:
        while True:
            yield SimpleNamespace(text=os.environ.get("TICK", "tick"), tokens=(1,), result=None)
            time.sleep(TICK)


def start(*words: str, **options: Any) -> "subprocess.Popen[bytes]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, __file__, *words], **pipes)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_close_everything_and_keep_the_text(number: signal.Signals, code: int) -> None:
    process = start("run", "p")
    assert process.stdout is not None
    first = process.stdout.read(4)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code
    text = first + out
    assert text.endswith(b"tick\n")
    assert text.strip() == b"tick" * (len(text) // 4)
    assert err == b"closed\n"


def test_a_reader_that_leaves_is_no_fault() -> None:
    process = start("run", "p")
    assert process.stdout is not None
    process.stdout.read(4)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b"closed\n"
    process.stderr.close()
    assert process.wait(timeout=20) == 141


def test_an_argument_that_is_not_utf8() -> None:
    process = start("run", os.fsdecode(b"ok\xff"))
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, b"")
    assert err == b"deskside: error: the prompt is not valid UTF-8 (character 2)\n"


def test_text_is_utf8_whatever_the_locale_says() -> None:
    process = start("run", "p", env=os.environ | {"PYTHONIOENCODING": "ascii", "TICK": "é"})
    assert process.stdout is not None
    first = process.stdout.read(2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert first == "é".encode()


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from deskside.cli import main; code = main(['run', '--help']);"
        "heavy = {'torch', 'numpy', 'tokenizers', 'pydantic', 'safetensors', 'tomllib'};"
        "sys.exit(code or len(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_help_is_there_in_a_blink() -> None:
    """Processor time, the least of several: the wall clock also counts whoever else is working."""
    code = "from deskside.cli import main; main(['--help'])"
    seconds = []
    for _ in range(7):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
        _, process.returncode, usage = os.wait4(process.pid, 0)
        assert process.returncode == 0
        seconds.append(usage.ru_utime + usage.ru_stime)
    assert min(seconds) < 0.3, seconds


if __name__ == "__main__":
    sys.exit(main(None, Counting()))
