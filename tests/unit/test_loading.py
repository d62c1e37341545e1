"""What a load shows, by a clock that the test turns."""

import io

import pytest

from deskside.core import RankLoad
from deskside.report.loading import Loading

GIB = 1024**3


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def one(done: int, total: int) -> list[RankLoad]:
    return [RankLoad(0, (0,), done, total)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_line_every_five_seconds(clock: Clock) -> None:
    out = io.StringIO()
    with Loading(out, clock) as loading:
        clock.now += 60  # before the first byte: not a part of the rate
        for tenth in range(121):
            loading(one(tenth * GIB // 10, 20 * GIB))
            clock.now = 160 + (tenth + 1) / 10
    assert out.getvalue().splitlines() == [
        "deskside: loading 5.00 GiB of 20.00 GiB, 1.00 GiB/s, 15 s left",
        "deskside: loading 10.00 GiB of 20.00 GiB, 1.00 GiB/s, 10 s left",
    ]


def test_several_ranks_have_a_share_each(clock: Clock) -> None:
    out = io.StringIO()
    ranks = [RankLoad(0, (0,), 3 * GIB, 4 * GIB), RankLoad(1, (1, 2), GIB, 4 * GIB)]
    with Loading(out, clock) as loading:
        loading([RankLoad(0, (0,), 0, 4 * GIB), RankLoad(1, (1, 2), 0, 0)])
        clock.now += 8
        loading(ranks)
    assert out.getvalue().splitlines() == [
        "deskside: loading 4.00 GiB of 8.00 GiB, 512.00 MiB/s, 8 s left; "
        "rank 0 (node 0) 75 %, rank 1 (node 1+2) 25 %"
    ]


def test_several_ranks_have_a_bar_each(clock: Clock) -> None:
    out = Terminal()
    with Loading(out, clock) as loading:
        for step in range(4):
            clock.now += 1
            begun = RankLoad(1, (1,), step * GIB, 9 * GIB) if step else RankLoad(1, (1,), 0, 0)
            loading([RankLoad(0, (), step * GIB, 7 * GIB), begun])
    text = out.getvalue()
    assert "rank 0" in text
    assert "rank 1 (node 1)" in text
    assert "7.0 GiB" in text
    assert "9.0 GiB" in text


def test_a_load_that_stands_still(clock: Clock) -> None:
    out = io.StringIO()
    with Loading(out, clock) as loading:
        loading(one(512 * 1024**2, GIB))
        clock.now += 6
        loading(one(512 * 1024**2, GIB))
    assert out.getvalue() == "deskside: loading 512.00 MiB of 1.00 GiB, 0 B/s, nothing comes\n"


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()])
def test_a_quick_load_shows_nothing(clock: Clock, out: io.StringIO) -> None:
    with Loading(out, clock) as loading:
        for step in range(10):
            clock.now += 0.04
            loading(one(step, 9))
    assert out.getvalue() == ""


def test_a_terminal_gets_a_bar_that_goes_away(clock: Clock) -> None:
    out = Terminal()

    def load() -> None:
        with Loading(out, clock) as loading:
            for step in range(10):
                clock.now += 1
                loading(one(step * GIB, 9 * GIB))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        load()
    text = out.getvalue()
    assert "loading" in text
    assert "9.0 GiB" in text
    assert "\x1b[?25h" in text  # the cursor is shown again
