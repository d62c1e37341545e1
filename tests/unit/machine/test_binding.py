"""The calling thread is tied, or the user is told what is lost."""

import os
import threading
from types import SimpleNamespace

import pytest

from deskside.config.engine import EngineOptions
from deskside.machine.binding import bind, bound
from deskside.machine.placement import RankPlace
from deskside.runtime import worker


def in_a_thread(cpus: set[int]) -> tuple[str | None, set[int]]:
    """Bind a thread that nobody else uses, and return what came of it."""
    found: list[tuple[str | None, set[int]]] = []
    thread = threading.Thread(target=lambda: found.append((bind(cpus), os.sched_getaffinity(0))))
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_is_bound_alone() -> None:
    before = os.sched_getaffinity(0)
    assert in_a_thread({min(before)}) == (None, {min(before)})
    assert in_a_thread(before) == (None, before)
    assert os.sched_getaffinity(0) == before


def test_a_refusal_is_a_warning() -> None:
    before = os.sched_getaffinity(0)
    said, after = in_a_thread({1023})
    assert after == before
    assert said is not None
    assert "memory may come from another node" in said


def test_a_tie_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    before = os.sched_getaffinity(0)
    with bound({max(before)}):
        assert os.sched_getaffinity(0) == {max(before)}
    assert os.sched_getaffinity(0) == before
    assert caplog.text == ""
    with bound({1023}):
        assert os.sched_getaffinity(0) == before
    assert "the coordinator cannot be bound to its CPUs" in caplog.text


def test_the_engines_process_binds_its_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    own = RankPlace(0, (0,), (0, 1), (min(os.sched_getaffinity(0)),), ((1,),), False, True)
    runtime = SimpleNamespace(placement=SimpleNamespace(ranks=(own,)))
    monkeypatch.setattr("deskside.runtime.build.build", lambda *_: runtime)
    found: list[object] = []

    def start() -> None:
        found.append(worker._package_build()("model", EngineOptions(), lambda *_: None))
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert found == [runtime, set(own.coordinator)]
