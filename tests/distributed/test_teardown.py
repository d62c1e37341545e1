"""Whatever ends one process of a run ends all of them, and the next run starts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deskside.distributed.trace import Trace

PATIENCE = 120.0
GONE_AFTER = 10.0
RANKS = 2
RANK_TIMEOUT = 3.0
ENDLESS = "3000"
KILL, STOP, TERM, INT = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT

CASES = [
    # phase, who, signal, exit codes
    ("load", "follower", KILL, 4),
    ("decode", "follower", KILL, 4),
    ("decode", "follower", STOP, 4),
    ("decode", "leader", KILL, -KILL),
    ("decode", "leader", INT, 130),
]
SLOW = [
    ("load", "follower", STOP, 4),
    ("load", "leader", KILL, -KILL),
    ("load", "leader", TERM, 143),
    ("load", "leader", INT, 130),
    ("prefill", "follower", KILL, 4),
    ("prefill", "follower", STOP, 4),
    ("prefill", "leader", KILL, -KILL),
    ("prefill", "leader", TERM, 143),
    ("prefill", "leader", INT, 130),
    ("decode", "leader", TERM, 143),
    ("reduction", "follower", KILL, 4),
    ("reduction", "follower", STOP, 4),
]


@dataclass
class Run:
    """A running command and where it says what."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    followers: list[int]

    @property
    def said(self) -> str:
        return (self.folder / "err").read_text()


def children(pid: int) -> list[int]:
    """Return the children of a process's first thread."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in listed.split()]


def until(true: "object", what: str, seconds: float = PATIENCE) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


@contextmanager
def running(folder: Path, phase: str) -> Iterator[Run]:
    """Run a command of two ranks up to a phase; nothing of it is left afterwards."""
    prompt = folder / "prompt"
    prompt.write_text("x = 1\n" * (3000 if phase == "prefill" else 3))
    command = [sys.executable, "-m", "deskside", "run", "--file", str(prompt)]
    command += ["--max-tokens", ENDLESS, "--tp", str(RANKS), "--kv-tokens", "32768"]
    command += ["--rank-timeout", str(RANK_TIMEOUT), "--rendezvous-timeout", "20"]
    command += ["--speculation", "off", "--prefill-chunk", "64", "--threads", "1"]
    environ = {**os.environ, "TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            command, stdout=out, stderr=err, env=environ, preexec_fn=_hear_interrupts
        )
    run = Run(process, folder, [])
    try:
        until(lambda: children(process.pid), f"no rank started: {run.said}")
        run.followers = children(process.pid)
        assert len(run.followers) == RANKS - 1
        if phase in ("decode", "reduction"):
            until(lambda: (folder / "out").stat().st_size, f"no text: {run.said}")
        elif phase == "prefill":
            until(lambda: b"step" in trace(folder), f"no step: {run.said}")
        yield run
    finally:
        process.kill()
        process.wait()
        for pid in run.followers:
            assert not alive(pid), "nothing is left"


def _hear_interrupts() -> None:
    """Undo what a shell does to commands in its background: they ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def trace(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("deskside-run-*/trace"))


def strike(victim: int, number: signal.Signals, leader: int | None, folder: Path) -> None:
    """Signal a process; with a leader, while the victim waits for it in an exchange."""
    if leader is None:
        os.kill(victim, number)
        return
    for _ in range(100):  # a leader may be held still between two exchanges
        os.kill(leader, STOP)
        time.sleep(0.1)
        if exchanging(folder, 1):
            break
        os.kill(leader, signal.SIGCONT)
        time.sleep(0.01)
    assert exchanging(folder, 1)
    os.kill(victim, number)
    os.kill(leader, signal.SIGCONT)


def exchanging(folder: Path, rank: int) -> bool:
    (path,) = folder.glob("deskside-run-*/trace")
    return "step" in (said := Trace(path, RANKS).read(rank)) and "in exchange" in said


def end(folder: Path, phase: str, who: str, number: signal.Signals, code: int) -> None:
    with running(folder, phase) as run:
        victim = run.followers[0] if who == "follower" else run.process.pid
        strike(victim, number, run.process.pid if phase == "reduction" else None, folder)
        ended = time.monotonic()
        slack = RANK_TIMEOUT if number is STOP else 0.0
        assert run.process.wait(PATIENCE) == code, run.said
        until(lambda: not any(map(alive, run.followers)), "a rank outlives the run", GONE_AFTER)
        assert time.monotonic() - ended < GONE_AFTER + slack
        if who == "follower":
            (line,) = [line for line in run.said.splitlines() if "deskside: error" in line]
            assert "rank 1" in line
            assert phase != "reduction" or "in exchange" in line
    if number is not KILL or who == "follower":
        assert not list(folder.glob("deskside-run-*"))
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("deskside")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("phase", "who", "number", "code"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_the_end_of_one_is_the_end_of_all(
    tmp_path: Path, phase: str, who: str, number: signal.Signals, code: int
) -> None:
    end(tmp_path, phase, who, number, code)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_start_after_any_of_these_works_twenty_times(tmp_path: Path) -> None:
    """Every second start is one that ends badly; the other one has to give its text."""
    command = [sys.executable, "-m", "deskside", "run", "x = ", "--max-tokens", "4", "--tp", "2"]
    command += ["--kv-tokens", "1024", "--quiet"]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    texts = set()
    for turn in range(20):
        folder = tmp_path / str(turn)
        folder.mkdir()
        end(folder, *(*CASES, *SLOW)[turn % len((*CASES, *SLOW))])
        done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
        assert done.returncode == 0, done.stderr
        texts.add(done.stdout)
    assert len(texts) == 1
