"""What goes between ranks, over shared memory and over gloo: every byte, in order, or an error."""

import contextlib
import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from deskside.distributed.gloo import GlooGroup, Meeting
from deskside.distributed.group import ALONE, LEADER, Group
from deskside.distributed.room import LINE, PLACE, Room
from deskside.distributed.shared import SharedGroup
from deskside.distributed.trace import Trace
from deskside.errors import LostRankError
from deskside.kernels.exchange import take_seat
from deskside.ops.tiles import pairwise_sum

RANKS = 3
SECONDS = 20.0
SIZES = [1, 7, 1000, PLACE, PLACE + 13, 3 * PLACE]

Make = Callable[[int], Group]


@contextlib.contextmanager
def over_memory(seconds: float = SECONDS) -> Iterator[Make]:
    descriptor = Room.create(RANKS)
    try:
        yield lambda rank: SharedGroup(Room.open(descriptor, RANKS), rank, take_seat, seconds)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def over_gloo(seconds: float = SECONDS) -> Iterator[Make]:
    first, port = Meeting.lead(RANKS, seconds)

    def make(rank: int) -> Group:
        meeting = first
        if rank != LEADER:
            meeting = Meeting.come("127.0.0.1", port, rank, RANKS, seconds)
        meeting.gather(lambda _absent: None)
        return GlooGroup(meeting)

    yield make


TRANSPORTS = {"memory": over_memory, "gloo": over_gloo}


@pytest.fixture(params=TRANSPORTS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    with TRANSPORTS[request.param]() as made:
        yield made


def together(make: Make, body: Callable[[Group], Any]) -> list[Any]:
    """Run a body once a rank, each in a thread."""
    with ThreadPoolExecutor(RANKS) as pool:
        done = [pool.submit(lambda r=rank: body(make(r))) for rank in range(RANKS)]
        return [future.result(timeout=60) for future in done]


def part(rank: int, nbytes: int, turn: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * turn + rank)
    return torch.randint(0, 256, (nbytes,), generator=draw, dtype=torch.uint8)


def test_every_exchange_brings_every_byte(make: Make) -> None:
    def body(group: Group) -> None:
        group.settle(SECONDS, spin=True)
        for turn, nbytes in enumerate(SIZES * 2):
            own = part(group.rank, nbytes, turn)
            (found,) = group.gather(own)
            for rank, one in enumerate(found):
                assert one.equal(part(rank, nbytes, turn))
            collected = group.collect(own)
            if group.rank == LEADER:
                assert all(c.equal(part(r, nbytes, turn)) for r, c in enumerate(collected))
            else:
                assert not collected
            numbers = torch.full((2, 3), float(turn)) if group.rank == LEADER else torch.empty(2, 3)
            assert group.share(numbers).equal(torch.full((2, 3), float(turn)))
            record = part(LEADER, nbytes, turn).numpy().tobytes()
            assert group.tell(record if group.rank == LEADER else None) == record

    together(make, body)


def test_parts_keep_their_type_and_shape(make: Make) -> None:
    def body(group: Group) -> None:
        for dtype in (torch.int16, torch.int32, torch.int64, torch.float32, torch.bfloat16):
            own = torch.arange(6).view(2, 3).to(dtype) + group.rank
            for rank, one in enumerate(group.gather(own)[0]):
                assert one.dtype is dtype
                assert one.equal(torch.arange(6).view(2, 3).to(dtype) + rank)

    together(make, body)


def test_several_parts_go_in_one_exchange(make: Make) -> None:
    """Parts of other types and odd sizes beside each other, and some larger than a place."""
    shapes = [(3,), (2, 5), (PLACE // 8 + 3,)]

    def body(group: Group) -> None:
        calls = group.traffic.calls
        for turn in range(4):
            sent = [part(rank, 1 + 10 * turn, turn) for rank in range(RANKS)]
            sums = [torch.full(shapes[turn % 3], 2**40 + rank) for rank in range(RANKS)]
            found = group.gather(sent[group.rank], sums[group.rank])
            for expected, got in zip((sent, sums), found, strict=True):
                assert [one.dtype for one in got] == [one.dtype for one in expected]
                assert all(a.equal(b) for a, b in zip(expected, got, strict=True))
        assert group.traffic.calls - calls == 4

    together(make, body)


def terms(rank: int, count: int, turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers whose sum depends on the order, and integers that may overflow."""
    draw = torch.Generator().manual_seed(1000 * turn + rank)
    floats = torch.randn(count, generator=draw) * 10.0 ** torch.randint(
        -6, 6, (count,), generator=draw
    )
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=draw), floats


def added_in_order(group: Group) -> None:
    group.settle(SECONDS, spin=True)
    for turn, count in enumerate([1, 7, 384, PLACE // 8, PLACE // 8 + 13, 3]):
        calls = group.traffic.calls
        found = group.total(*terms(group.rank, count, turn))
        assert group.traffic.calls == calls + 1
        parts = zip(*[terms(rank, count, turn) for rank in range(group.ranks)], strict=True)
        for one, column in zip(found, parts, strict=True):
            assert one.equal(pairwise_sum(list(column)))


def test_sums_have_the_bits_of_the_fixed_tree(make: Make) -> None:
    together(make, added_in_order)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_as_many_ranks_as_share_a_model_add_alike(ranks: int) -> None:
    descriptor = Room.create(ranks)
    with ThreadPoolExecutor(ranks) as pool:
        groups = [
            SharedGroup(Room.open(descriptor, ranks), rank, take_seat, SECONDS)
            for rank in range(ranks)
        ]
        os.close(descriptor)
        for done in [pool.submit(added_in_order, group) for group in groups]:
            done.result(timeout=60)


def test_traffic_is_counted(make: Make) -> None:
    def body(group: Group) -> tuple[int, int]:
        calls, nbytes = group.traffic.calls, group.traffic.nbytes
        group.gather(torch.zeros(10))
        group.collect(torch.zeros(10))
        return group.traffic.calls - calls, group.traffic.nbytes - nbytes

    leader, *others = together(make, body)
    assert {nbytes for _, nbytes in others} == {80}
    assert leader[1] == 40, "a leader that collects sends nothing"


def test_a_slow_rank_is_waited_for_and_overtaken_by_none(make: Make) -> None:
    """Ranks of very different speed: a place is not written before it was read."""

    def body(group: Group) -> None:
        for turn in range(30):
            if turn % RANKS == group.rank:
                time.sleep(0.01)
            record = str(turn).encode() if group.rank == LEADER else None
            assert group.tell(record) == str(turn).encode()
            if turn % 5 == 0:
                (found,) = group.gather(torch.tensor([turn, group.rank]))
                assert [one.tolist() for one in found] == [[turn, r] for r in range(RANKS)]

    together(make, body)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_does_not_answer_is_lost(transport: str) -> None:
    over = threading.Event()

    def body(group: Group) -> str | None:
        group.settle(0.5, spin=False)
        if group.rank == RANKS - 1:
            over.wait(30)
            return None
        with pytest.raises(LostRankError) as lost:
            group.gather(torch.zeros(4))
        if group.rank == LEADER:
            over.set()
        return str(lost.value)

    with TRANSPORTS[transport]() as make:
        assert together(make, body)[LEADER]


def test_a_leader_that_tells_waits_for_nobody_without_an_end() -> None:
    """A place is written again only when all have begun the exchange after it."""
    descriptor = Room.create(2)
    group = SharedGroup(Room.open(descriptor, 2), LEADER, take_seat, 0.3)
    os.close(descriptor)
    group.tell(b"one")
    with pytest.raises(LostRankError):
        group.tell(b"two")


def test_the_leader_looks_after_its_ranks_while_it_waits() -> None:
    seen: list[Sequence[int]] = []

    def lost(behind: Sequence[int]) -> None:
        seen.append(behind)
        if len(seen) == 2:
            raise LostRankError("rank 1 got SIGKILL")

    descriptor = Room.create(2)
    group = SharedGroup(Room.open(descriptor, 2), LEADER, take_seat, 60.0, None, lost)
    os.close(descriptor)
    with pytest.raises(LostRankError, match="got SIGKILL"):
        group.gather(torch.zeros(4))
    assert seen == [(), ()]


def test_who_is_behind_is_known_when_the_time_is_over() -> None:
    """Of three ranks one has begun the exchange, one has not; where counts wrap too."""
    seen: list[Sequence[int]] = []

    def lost(behind: Sequence[int]) -> None:
        seen.append(behind)
        if behind:
            raise LostRankError("late")

    for turn in (0, 2**31, 2**32 - 1):
        seen.clear()
        descriptor = Room.create(3)
        group = SharedGroup(Room.open(descriptor, 3), LEADER, take_seat, 0.2, None, lost)
        group._turn = turn
        other = Room.open(descriptor, 3)
        os.close(descriptor)
        for rank, begun in ((1, turn + 1), (2, turn)):
            for word, count in enumerate((turn, begun)):
                start = (2 * rank + word) * LINE
                octets = torch.tensor(list((count % 2**32).to_bytes(4, "little")))
                other.memory[start : start + 4] = octets.to(torch.uint8)
        with pytest.raises(LostRankError, match="late"):
            group.gather(torch.zeros(4))
        assert list(seen[-1]) == [2]


def _echo(descriptor: int, pipe: Connection) -> None:
    group = SharedGroup(Room.open(descriptor, 2), 1, take_seat, SECONDS)
    group.settle(SECONDS, spin=True)
    while (record := group.tell(None)) != b"leave":
        group.gather(torch.frombuffer(bytearray(record), dtype=torch.uint8))
    pipe.send("left")


@pytest.mark.timeout(120)
def test_two_processes_share_memory() -> None:
    descriptor = Room.create(2)
    ours, theirs = multiprocessing.Pipe()
    gc.collect()  # a group over gloo can't be let go of in a child, which has none of its threads
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_echo, args=(descriptor, theirs), daemon=True)
    child.start()
    try:
        group = SharedGroup(Room.open(descriptor, 2), LEADER, take_seat, SECONDS)
        group.settle(SECONDS, spin=True)
        for turn in range(500):
            record = bytes([turn % 256]) * (1 + turn)
            group.tell(record)
            own = torch.zeros(1 + turn, dtype=torch.uint8)
            assert group.gather(own)[0][1].numpy().tobytes() == record
        group.tell(b"leave")
        assert ours.poll(SECONDS)
    finally:
        child.join(SECONDS)
        os.close(descriptor)
    assert child.exitcode == 0


def test_who_is_missing_is_named_with_what_it_did(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace", 3)
    Trace(tmp_path / "trace", 3).enter(1, "loading torch")
    meeting, port = Meeting.lead(3, 0.3)
    Meeting.come("127.0.0.1", port, 2, 3, 0.3).mark("here-2")
    with pytest.raises(LostRankError, match=r"within 0.3 s .*missing rank 1: loading torch$"):
        meeting.gather(lambda _absent: None, trace.read)


def test_a_trace_says_which_exchange(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace", 2)
    assert trace.read(1) == "starting"
    trace.enter(1, "step 7")
    trace.calls(1)[0] = 3
    assert Trace(tmp_path / "trace", 2).read(1) == "step 7, in exchange 3"
    trace.enter(1, "x" * 5000)
    assert set(trace.read(1)) == {"x"}
    assert trace.read(0) == "starting"


def test_one_rank_has_what_it_gives() -> None:
    own = torch.arange(3)
    assert ALONE.gather(own, own)[1][0] is own
    assert ALONE.collect(own)[0] is own
    assert ALONE.share(own) is own
    assert ALONE.tell(b"x") == b"x"
