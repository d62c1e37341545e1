"""Several processes as one model: how they come together and how they end.

The leader starts the others on this machine, or torchrun has started all. Owns the words for a rank
that is lost: which one, how it ended and what it last did.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from deskside.checkpoint.loader import Progress
from deskside.config.engine import EngineOptions
from deskside.config.environment import TorchrunPlace, torchrun_place
from deskside.core import RankLoad
from deskside.distributed.gloo import GlooGroup, Meeting
from deskside.distributed.group import ALONE, LEADER, Group
from deskside.distributed.room import Room
from deskside.distributed.shared import SharedGroup
from deskside.distributed.trace import Trace
from deskside.errors import InputError, LostRankError
from deskside.kernels.exchange import take_seat
from deskside.runtime.folder import RunFolder
from deskside.runtime.followers import Followers, orders
from deskside.wire.ranks import Setup

__all__ = ["Ensemble", "Listener", "turn"]

LAST_WORDS = 2.0
"""Seconds in which the end of a rank shows after its connection broke."""
EVERY = 0.01


Listener = Callable[[Sequence[RankLoad]], None]
"""Hears how far the loads of all ranks are, again and again."""


def _nothing() -> None:
    """Tell nobody."""


@dataclass(slots=True)
class Ensemble:
    """The ranks as their leader holds them; closing it leaves no process behind."""

    group: Group = ALONE
    meeting: Meeting | None = None
    followers: Followers | None = None
    trace: Trace | None = None
    patience: float = math.inf
    """Seconds that a rank may be held still, at any time."""
    _loading: bool = True
    _told: Callable[[], None] = _nothing
    _still: dict[int, float] = field(default_factory=dict)
    """Since when ranks are held still."""
    _held: ExitStack = field(default_factory=ExitStack)

    @staticmethod
    def lead(options: EngineOptions) -> "Ensemble":
        """Bring the ranks together, started here or by torchrun; one rank needs nobody.

        Raises:
            InputError: torchrun has started another number of ranks.
            LostRankError: a rank did not come.
        """
        place = torchrun_place()
        if place is not None:
            return _by_torchrun(options, place)
        return Ensemble() if options.tp == 1 else _by_ourselves(options)

    def setup(self, model: str, options: EngineOptions) -> None:
        """Tell every rank what to load."""
        if self.group.ranks > 1:
            record = Setup(model=model, options=options, patience=options.rank_timeout)
            self.group.tell(record.model_dump_json().encode())

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the followers that were started here, by rank."""
        return self.followers.pids if self.followers is not None else ()

    def watched(self, listener: Listener | None, nodes: Sequence[tuple[int, ...]]) -> Progress:
        """Return what takes in this rank's progress, and tells how far all ranks are.

        Args:
            listener: is told of every rank, until all have loaded.
            nodes: of every rank on this machine.
        """

        def tell(done: int, total: int) -> None:
            loads = [(done, total)]
            if self.trace is not None:
                self.trace.load(LEADER, done, total)
                loads = [self.trace.loaded(rank) for rank in range(self.group.ranks)]
            if listener is not None:
                listener([RankLoad(r, nodes[r], *load) for r, load in enumerate(loads)])

        def listen(done: int, total: int) -> None:
            self.check()
            self._told = partial(tell, done, total)
            self._told()

        return listen

    def loaded(self) -> None:
        """Note that every rank has loaded."""
        self._loading = False
        self._told = _nothing

    def check(self) -> None:
        """Notice a rank that has ended, or was held still for too long.

        Raises:
            LostRankError: names it.
        """
        if self.followers is None:
            return
        now, still = time.monotonic(), self.followers.held_still()
        self._still = {rank: self._still.get(rank, now) for rank in still}
        late = any(now - since > self.patience for since in self._still.values())
        if late or self.followers.ended() is not None:
            raise LostRankError(self.blame())

    def lost(self, behind: Sequence[int]) -> None:
        """Notice a rank that has ended, or say that these do not answer in time.

        Raises:
            LostRankError: names it.
        """
        self.check()
        self._told()
        if behind:
            raise LostRankError(self.blame(behind))

    def blame(self, behind: Sequence[int] = ()) -> str:
        """Say which rank is lost, how, and what it last did; its end may take a while to show.

        Ranks that are behind were waited for long enough.
        """
        if self.followers is None or self.trace is None:
            return "a rank is gone or does not answer"
        end = time.monotonic() + (0 if behind else LAST_WORDS)
        while (fallen := self.followers.fallen()) is None and time.monotonic() < end:
            time.sleep(EVERY)
        if fallen is not None:
            rank, how = fallen
            return f"rank {rank} {how}; last seen: {self.trace.read(rank)}"
        knob = "--rendezvous-timeout" if self._loading else "--rank-timeout"
        seen = (f"rank {r}: {self.trace.read(r)}" for r in behind or range(self.group.ranks))
        return f"no rank has ended and one does not answer in time ({knob}); {'; '.join(seen)}"

    def close(self, *, orderly: bool) -> None:
        """End the other ranks: they leave by themselves if told so, or are killed at once."""
        if self.followers is not None:
            if orderly:
                self.followers.end()
            else:
                self.followers.kill()
        self._held.close()


def _by_ourselves(options: EngineOptions) -> Ensemble:
    with ExitStack() as held:
        folder = held.enter_context(RunFolder.create())
        trace = Trace(folder.trace, options.tp)
        trace.enter(LEADER, "meeting")
        meeting, port = Meeting.lead(options.tp, options.rendezvous_timeout)
        seconds = options.rendezvous_timeout
        memory = Room.create(options.tp)
        held.callback(os.close, memory)
        told = orders(options.tp, meeting.host, port, seconds, folder.trace, memory)
        followers = Followers.start(told)
        for process in followers.pids:
            folder.note(process)
        ensemble = Ensemble(ALONE, meeting, followers, trace, options.rank_timeout)
        held.callback(followers.kill)
        meeting.gather(lambda _absent: ensemble.check(), trace.read)
        room = Room.open(memory, options.tp)
        ensemble.group = SharedGroup(room, LEADER, take_seat, seconds, trace, ensemble.lost)
        ensemble._held = held.pop_all()
    return ensemble


def _by_torchrun(options: EngineOptions, place: TorchrunPlace) -> Ensemble:
    ranks = place.ranks
    if ranks != options.tp:
        raise InputError(f"torchrun has started {ranks} ranks: use --tp {ranks}, not {options.tp}")
    meeting = Meeting.torchrun(place.master, options.rendezvous_timeout)
    meeting.gather(lambda _absent: None)
    return Ensemble(GlooGroup(meeting) if ranks > 1 else ALONE, meeting)


def told_setup(group: Group) -> Setup:
    """Return what the leader wants loaded."""
    return Setup.model_validate_json(group.tell(None))


@contextmanager
def turn(meeting: Meeting | None, *, serial: bool) -> Iterator[None]:
    """Wait for the rank before this one to have loaded, where ranks load one by one."""
    if meeting is None or not serial:
        yield
        return
    if meeting.rank != LEADER:
        meeting.wait(f"rank {meeting.rank - 1} has loaded")
    yield
    meeting.mark(f"rank {meeting.rank} has loaded")
