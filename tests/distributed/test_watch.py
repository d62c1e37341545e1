"""What the leader hears of its ranks while they load, and when one of them is held still."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from deskside.core import RankLoad
from deskside.distributed.trace import Trace
from deskside.errors import LostRankError
from deskside.runtime.followers import Followers
from deskside.runtime.launch import Worker
from deskside.runtime.ranks import Ensemble
from tests.distributed.threads import Table, ThreadGroup

NODES = [(0,), (1,)]


@pytest.fixture
def follower() -> Iterator[Worker]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield Worker(process, "", "")
    process.kill()
    process.wait()


def ensemble(folder: Path, follower: Worker, patience: float = 60.0) -> Ensemble:
    group = ThreadGroup(Table(2), 0)
    trace = Trace(folder / "trace", 2)
    return Ensemble(group, None, Followers((follower,)), trace, patience)


def test_every_rank_is_told_of_also_when_the_leader_has_loaded(
    tmp_path: Path, follower: Worker
) -> None:
    told: list[Sequence[RankLoad]] = []
    ranks = ensemble(tmp_path, follower)
    listen = ranks.watched(told.append, NODES)
    theirs = Trace(tmp_path / "trace", 2)
    listen(3, 10)
    theirs.load(1, 5, 11)
    listen(10, 10)
    theirs.load(1, 11, 11)
    ranks.lost(())  # the leader waits for the others
    assert told == [
        [RankLoad(0, (0,), 3, 10), RankLoad(1, (1,), 0, 0)],
        [RankLoad(0, (0,), 10, 10), RankLoad(1, (1,), 5, 11)],
        [RankLoad(0, (0,), 10, 10), RankLoad(1, (1,), 11, 11)],
    ]
    ranks.loaded()
    ranks.lost(())
    assert len(told) == 3, "nothing loads any more"


def test_one_rank_is_told_of_alone() -> None:
    told: list[Sequence[RankLoad]] = []
    Ensemble().watched(told.append, [(0,)])(1, 2)
    assert told == [[RankLoad(0, (0,), 1, 2)]]


def test_a_rank_held_still_is_lost_after_its_time_and_not_before(
    tmp_path: Path, follower: Worker
) -> None:
    ranks = ensemble(tmp_path, follower, patience=0.5)
    Trace(tmp_path / "trace", 2).enter(1, "loading weights")
    follower.process.send_signal(signal.SIGSTOP)
    end = time.monotonic() + 10
    while not follower.stopped():
        assert time.monotonic() < end
        time.sleep(0.01)
    ranks.check()
    follower.process.send_signal(signal.SIGCONT)
    while follower.stopped():
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.6)
    ranks.check()  # it went on in between
    follower.process.send_signal(signal.SIGSTOP)

    def watch() -> None:
        while time.monotonic() < end:
            ranks.check()
            time.sleep(0.05)

    with pytest.raises(LostRankError, match=r"rank 1 .* is held still .*: loading weights"):
        watch()


@pytest.mark.parametrize(("loaded", "knob"), [(False, "--rendezvous-timeout"), (True, "--rank-")])
def test_a_rank_that_is_behind_is_named_with_its_knob(
    tmp_path: Path, follower: Worker, loaded: bool, knob: str
) -> None:
    ranks = ensemble(tmp_path, follower)
    Trace(tmp_path / "trace", 2).enter(1, "loading weights")
    if loaded:
        ranks.loaded()
    with pytest.raises(LostRankError, match=rf"\({knob}.*\); rank 1: loading weights$"):
        ranks.lost([1])
