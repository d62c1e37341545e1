"""What a run that is over left behind: named, and ended only where its own file proves it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deskside.cli import main
from deskside.errors import InputError, PortHeldError
from deskside.runtime.folder import Process, RunFolder, command_of, started_at
from deskside.runtime.leftovers import clean, leftovers, run_of
from deskside.server.bind import bind
from tests.server.rig import END_SECONDS

SLEEP = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.{}); time.sleep(600)"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(params=["SIG_DFL", "SIG_IGN"])
def sleeper(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that stays; one kind of it does not hear SIGTERM."""
    process = subprocess.Popen([sys.executable, "-c", SLEEP.format(request.param)])
    time.sleep(0.3)
    yield process
    process.kill()
    process.wait()


def over(parent: Path, *processes: Process) -> Path:
    """Lay down the folder of a run that is over."""
    folder = RunFolder.create(parent)
    (folder.path / "owner").write_text(f'{os.getpid()} 1 "deskside serve"\n')
    (folder.path / "processes").write_text("".join(one.line() for one in processes))
    return folder.path


def test_a_process_of_a_run_that_is_over_is_ended(
    temporary: Path,
    sleeper: "subprocess.Popen[bytes]",
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = over(temporary, Process.now(sleeper.pid))
    (found,) = leftovers()
    assert f"process {sleeper.pid} (" in found.line()
    assert run_of(sleeper.pid) == path.name
    with RunFolder.create():  # a new run keeps what proves that the process is ours
        assert path.exists()
        assert f"process {sleeper.pid} " in caplog.text
        assert "doctor --clean" in caplog.text
    assert main(["doctor", "--clean"]) == 0
    assert sleeper.wait(END_SECONDS) < 0
    assert not path.exists()
    said = capsys.readouterr().out
    assert f"ended process {sleeper.pid} " in said
    assert f"removed {path}" in said
    assert main(["doctor", "--clean"]) == 0
    assert capsys.readouterr().out == "nothing was left behind\n"


@pytest.mark.parametrize("lie", ["started", "command", "number"])
def test_what_the_file_does_not_prove_is_left_alone(
    temporary: Path, sleeper: "subprocess.Popen[bytes]", lie: str
) -> None:
    told = {
        "number": sleeper.pid,
        "started": started_at(sleeper.pid) or "",
        "command": command_of(sleeper.pid),
    }
    told[lie] = os.getppid() if lie == "number" else f"{told[lie]}1"
    path = over(temporary, Process(**told))  # type: ignore[arg-type]
    assert list(clean()) == [f"removed {path}"]
    assert sleeper.poll() is None


def test_a_run_that_goes_on_is_left_alone(
    temporary: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    with RunFolder.create() as mine:
        mine.note(sleeper.pid)
        assert list(clean()) == []
        assert sleeper.poll() is None
        assert mine.path.exists()


@pytest.mark.parametrize("line", ["", "x", "1", "5 y", '7 8 {"a": 1}', "9 9 [", "-4 3"])
def test_a_torn_file_proves_nothing(temporary: Path, line: str) -> None:
    folder = over(temporary)
    (folder / "processes").write_text(line)
    assert RunFolder(folder).processes() == []
    (folder / "owner").write_text(line)
    assert leftovers() == []
    assert list(clean()) == []


def test_who_holds_a_port_is_named_with_its_run(temporary: Path) -> None:
    with socket.socket() as held, RunFolder.create() as mine:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(PortHeldError) as caught:
            bind("127.0.0.1", port)
        assert caught.value.exit_code == 5
        for word in (f"port {port}", f"process {os.getpid()}", mine.path.name, "doctor --clean"):
            assert word in str(caught.value)


def test_a_folder_too_deep_for_a_socket_is_named(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    with (
        RunFolder.create(deep) as mine,
        pytest.raises(InputError, match=r"at most 107 characters, have .*TMPDIR"),
    ):
        mine.socket("commands")


def test_what_a_killed_process_could_not_remove_goes_when_its_own_are_gone(
    temporary: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    path = over(temporary, Process.now(sleeper.pid))
    other = over(temporary)
    (other / "owner").write_text('1 1 "deskside serve"\n')
    RunFolder.remove_of(os.getpid(), 0.1)
    assert path.exists(), "a process of it still lives"
    sleeper.kill()
    sleeper.wait()
    RunFolder.remove_of(os.getpid(), 0.1)
    assert not path.exists()
    assert other.exists(), "another's"


def test_the_folder_of_a_process_that_lives_stays(temporary: Path) -> None:
    with RunFolder.create() as folder:
        RunFolder.remove_of(os.getpid(), 0.1)
        assert folder.path.exists()
