"""From the first probe to the last process: loading, draining, dying, and what is left."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deskside.config.engine import EngineOptions
from deskside.config.server import ServerOptions
from deskside.errors import CheckpointError, InputError, PortHeldError
from deskside.runtime.folder import RunFolder
from deskside.server.serve import serve
from tests.server.double import Act
from tests.server.ending import Reader, ends, gone, injected
from tests.server.rig import END_SECONDS, ROOT, Server, serving, started

LOOP = {"prompt": [Act.LOOP, 0, 100, 200], "max_tokens": 4000, "temperature": 0}


def test_a_start_from_the_first_probe_to_a_killed_parent(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        with started("--kv-tokens", "1024", environ={"NOTIFY_SOCKET": address}) as server:
            _is_honest_while_it_loads(server)
            server.wait_ready()
            assert manager.recv(100) == b"READY=1"
            _listens_on_one_port(server)
            worker = server.worker()
            assert "libtorch" not in Path(f"/proc/{server.process.pid}/maps").read_text()
            assert "libtorch" in Path(f"/proc/{worker}/maps").read_text()
            server.process.kill()
            server.process.wait(END_SECONDS)
            assert gone(worker)
            with socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.bind(("127.0.0.1", server.port))


def _is_honest_while_it_loads(server: Server) -> None:
    percents = []
    assert server.get("/health/live").status_code == 200
    while (answer := server.get("/health/ready")).status_code == 503:
        said = answer.json()
        assert said["error"]["code"] == "loading"
        assert answer.headers["retry-after"]
        percents.append(said["percent"])
        assert said["phase"] in said["error"]["message"]
        assert server.get("/metrics").status_code in (200, 503)
        time.sleep(0.02)
    assert answer.status_code == 200
    assert percents == sorted(percents)
    assert len(set(percents)) > 1
    assert server.post("/v1/completions", {"prompt": "x"}).status_code == 200


def _listens_on_one_port(server: Server) -> None:
    inodes = set()
    for process in (server.process.pid, server.worker()):
        for link in os.scandir(f"/proc/{process}/fd"):
            inodes.add(os.readlink(link.path).removeprefix("socket:[").removesuffix("]"))
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.append(int(fields[1].rpartition(":")[2], 16))
    assert listening == [server.port]
    (own,) = server.run_folders()
    assert (own / "owner").read_text().split()[0] == str(server.process.pid)
    assert own.stat().st_mode & 0o777 == 0o700


def test_a_drain_lets_streams_end_and_takes_nothing_new() -> None:
    with serving("--kv-tokens", "8192", "--drain-timeout", "4") as server:
        worker = server.worker()
        short = Reader(server, **{**LOOP, "max_tokens": 30})
        endless = Reader(server, **LOOP)
        assert short.first.wait(20)
        assert endless.first.wait(20)
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while server.get("/health/ready").status_code == 200 and time.monotonic() < end:
            time.sleep(0.02)
        refused = server.post("/v1/completions", {"prompt": "x"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        server.process.send_signal(signal.SIGTERM)  # a second one skips nothing
        short.join(60)
        assert short.events[-1] == "[DONE]"
        endless.join(60)
        assert endless.events[-1]["error"]["code"] == "draining"
        assert "[DONE]" not in endless.events
        assert server.process.wait(END_SECONDS) == 143
        assert gone(worker)
        assert server.run_folders() == []


def test_sigterm_while_it_loads() -> None:
    with started("--kv-tokens", "1024") as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(END_SECONDS) == 143


def _streams(server: Server) -> list[Reader]:
    """Open streams in every phase: three that decode and one whose long prompt is read."""
    readers = [Reader(server, **{**LOOP, "max_tokens": 2000}) for _ in range(3)]
    assert all(reader.first.wait(20) for reader in readers)
    readers.append(Reader(server, prompt=[Act.SLOW, 0, *[300] * 3000], max_tokens=5))
    return readers


@pytest.mark.parametrize(
    "phase", ["decode", "prefill", pytest.param("idle", marks=pytest.mark.slow)]
)
def test_a_dead_worker_ends_everything_in_time(phase: str) -> None:
    with serving("--kv-tokens", "16384", "--prefill-chunk", "64") as server:
        worker = server.worker()
        readers = [] if phase == "idle" else _streams(server)[-1 if phase == "prefill" else 0 :]
        time.sleep(0.2)
        code = ends(server, readers, lambda: os.kill(worker, signal.SIGKILL))
        assert code == 4
        line = server.log.read_text().splitlines()[-1]
        assert line.startswith("deskside: error: the engine is gone")
        assert "SIGKILL" in line
        assert str(worker) in line


def test_an_answer_that_is_no_stream_hears_of_a_dead_worker_too() -> None:
    with serving("--kv-tokens", "1024") as server:
        body = {"prompt": [Act.KILL, 3, *range(300, 320)], "temperature": 0}
        answer = server.post("/v1/completions", body)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_dead"
        assert server.process.wait(END_SECONDS) == 4


WATCHDOG = 4.0


@pytest.mark.parametrize("how", [pytest.param("hang", marks=pytest.mark.slow), "stop"])
def test_a_worker_that_says_nothing_ends_everything_in_time(how: str) -> None:
    """One that is held still is seen at once; one that hangs, when the watchdog's time is over."""
    options = ("--kv-tokens", "16384", "--prefill-chunk", "64", "--watchdog", f"{WATCHDOG:g}")
    with serving(*options) as server:
        worker, readers = server.worker(), _streams(server)

        def cause() -> None:
            if how == "stop":
                os.kill(worker, signal.SIGSTOP)
                return
            hangs = Reader(server, **{**LOOP, "prompt": [Act.HANG, 3, *range(100, 120)]})
            assert hangs.first.wait(20)
            readers.append(hangs)

        unseen = WATCHDOG if how == "hang" else 0.0
        assert ends(server, readers, cause, ready_after=unseen, noticed_after=WATCHDOG) == 4
        assert all("--watchdog" in one.events[-1]["error"]["message"] for one in readers)
        assert "after step" in server.log.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    "act", ["error", *(pytest.param(one, marks=pytest.mark.slow) for one in ("kill", "hang"))]
)
def test_an_engine_that_cannot_speak_ends_everything_in_time(act: str) -> None:
    options = ("--kv-tokens", "16384", "--prefill-chunk", "64", "--watchdog", f"{WATCHDOG:g}")
    with serving(*options, "--test-faults", "later") as server:
        readers = _streams(server)

        def cause() -> None:
            assert server.post("/admin/faults", {"faults": [f"event:{act}:6"]}).status_code == 200
            injected(server)

        late = WATCHDOG if act == "hang" else 0.0
        code = ends(server, readers, cause, ready_after=late, noticed_after=late)
        assert code == (1 if act == "error" else 4)


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path) as mine:
        assert mine.path.stat().st_mode & 0o777 == 0o700
        dead = tmp_path / f"{mine.path.name}-dead"
        dead.mkdir()
        (dead / "owner").write_text(f"{os.getpid()} 1\n")  # our process id, of another time
        torn = tmp_path / f"{mine.path.name}-torn"
        torn.mkdir()
        with RunFolder.create(tmp_path):
            assert not dead.exists()
            assert torn.exists()  # not known to be anybody's
            assert mine.path.exists()
    assert not mine.path.exists()


def test_what_cannot_be_served_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(PortHeldError, match=f"port {port} .* process {os.getpid()}") as taken:
            serve("deskside-mini", EngineOptions(), ServerOptions(port=port))
        assert taken.value.exit_code == 5
        assert "--port" in str(taken.value)
    with pytest.raises(InputError, match="--open-to-all"):
        serve("deskside-mini", EngineOptions(), ServerOptions(host="0.0.0.0", port=0))
    with pytest.raises(CheckpointError):
        serve(str(tmp_path), EngineOptions(), ServerOptions(port=0))
    with pytest.raises(InputError, match="--host 203"):
        serve("deskside-mini", EngineOptions(), ServerOptions(host="203.0.113.9", open_to_all=True))


def test_a_worker_that_cannot_load_says_why() -> None:
    options = ("--port", "0", "--kv-tokens", "100000000000")
    done = subprocess.run(
        [sys.executable, "-m", "deskside", "serve", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("deskside: error: does not fit")


def test_the_real_engine_serves_what_run_says_to_many_at_once() -> None:
    prompt = "def fibonacci(n):"
    done = subprocess.run(
        [sys.executable, "-m", "deskside", "run", "--json", "--max-tokens", "24", prompt],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    want = json.loads(done.stdout)["text"]
    with serving("--kv-tokens", "4096", "--max-running", "16", scripted=False) as server:
        assert server.complete(prompt=prompt, max_tokens=24)["choices"][0]["text"] == want

        def text(place: int) -> str:
            fields = {"temperature": place % 2, "seed": place, "max_tokens": 10}
            events = server.events("/v1/completions", prompt=f"def part_{place}(x", **fields)
            assert events[-1] == "[DONE]"
            return "".join(event["choices"][0]["text"] for event in events[:-1])

        alone = [text(place) for place in range(16)]
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(text, range(16))) == alone


@pytest.fixture(autouse=True)
def _nothing_in_shared_memory() -> Iterator[None]:
    before = set(os.listdir("/dev/shm"))
    yield
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "deskside" in name}


def test_a_start_that_takes_too_long_has_failed() -> None:
    with started("--kv-tokens", "1024", "--load-timeout", "0.3") as server:
        assert server.process.wait(END_SECONDS) == 4, server.log.read_text()
        line = server.log.read_text().splitlines()[-1]
        assert "not ready in 0.3 s (--load-timeout) while loading (" in line
        assert "%" in line
        assert server.run_folders() == []
