"""Faults on demand, for tests: numbered sites at which one can be made to happen.

Owns the sites, what may happen there, and the count of when. Nothing is armed unless
`--test-faults` says so, and a service that others can reach refuses that option. A probe that is
not armed costs a look into an empty table.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import ParamSpec, TypeVar

from deskside.errors import InputError

__all__ = ["LATER", "SERVER_SITES", "Act", "Injection", "Probe", "Site", "injections"]

LATER = "later"
"""Arms nothing at the start: injections come while the service runs."""

SLOW_SECONDS = 0.3
HANG_SECONDS = 3600.0

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("deskside.injection")


class Site(IntEnum):
    """A place of the program. Numbers stay what they are; new sites get new ones."""

    READ = 1
    """A tensor was read from a checkpoint."""
    BANK = 2
    """Memory for the experts of a layer is touched."""
    STATE = 3
    """Memory for key/value state is taken."""
    SUBMIT = 4
    """The engine takes a request from the wire."""
    ADMIT = 5
    """A request enters the engine."""
    DRAFT = 6
    """Tokens are to be proposed."""
    RESERVE = 7
    """Room in all owners of state is to be reserved."""
    INPUTS = 8
    """The rows of a forward are to be put together."""
    FORWARD = 9
    """The model is to run."""
    EXPERTS = 10
    """The routed experts of a layer are to run."""
    LOGITS = 11
    """A forward has ended; its logits may turn into NaN."""
    SAMPLE = 12
    """Tokens are to be drawn and proposals judged."""
    STOP = 13
    """Stop rules are to be applied."""
    COMMIT = 14
    """A step is to be committed."""
    LEARN = 15
    """A committed step is to be counted."""
    EVENT = 16
    """The engine sends what a step brought."""
    QUEUE = 17
    """The HTTP process hands a sequence to the engine."""
    TEXT = 18
    """The HTTP process turns tokens into text."""
    WRITE = 19
    """The HTTP process writes a part of a stream; the connection may be torn."""


SERVER_SITES = frozenset({Site.QUEUE, Site.TEXT, Site.WRITE})
"""Sites in the HTTP process; all others lie in the engine's."""


class Act(StrEnum):
    """What happens at a site."""

    MEMORY = "memory"
    """Memory is short: MemoryError."""
    ERROR = "error"
    """A library fails: RuntimeError."""
    SLOW = "slow"
    """It takes a while."""
    KILL = "kill"
    """The process is gone."""
    HANG = "hang"
    """It does not come back."""
    NAN = "nan"
    """Numbers are none."""
    TEAR = "tear"
    """The connection breaks."""


ONLY_AT = {Act.NAN: Site.LOGITS, Act.TEAR: Site.WRITE}


@dataclass(frozen=True, slots=True)
class Injection:
    """What happens at a site, after how many passes, and how many times (0: from then on).

    With `rank` it happens in that one of several alone, else in every rank that passes.
    """

    site: Site
    act: Act
    after: int = 0
    times: int = 1
    rank: int | None = None

    @staticmethod
    def parse(text: str) -> "Injection":
        """Read SITE[@RANK]:ACT[:AFTER[:TIMES]], with the site's number or name.

        Raises:
            InputError: it says something else, or the act cannot happen there.
        """
        words = text.split(":")
        counts = words[2:]
        place, at, rank = words[0].partition("@")
        numbers = [*counts, rank] if at else counts
        if len(words) < 2 or len(counts) > 2 or not all(w.isdecimal() for w in numbers):
            raise InputError(
                "--test-faults must be SITE[@RANK]:ACT[:AFTER[:TIMES]] or "
                f"{LATER}, got {text!r:.60}"
            )
        site, act = _site(place), _act(words[1])
        if ONLY_AT.get(act, site) is not site or (site in SERVER_SITES and act in _ENGINE_ACTS):
            raise InputError(f"--test-faults {text:.60}: {act} cannot happen at {_name(site)}")
        return replace(Injection(site, act, *map(int, counts)), rank=int(rank) if at else None)


_ENGINE_ACTS = frozenset({Act.KILL, Act.HANG, Act.SLOW})


def injections(texts: Sequence[str], rank: int | None = 0) -> tuple[Injection, ...]:
    """Read all values of the option that concern a rank, or any.

    Raises:
        InputError: one of them says something else.
    """
    found = (Injection.parse(text) for text in texts if text != LATER)
    return tuple(one for one in found if rank is None or one.rank in (None, rank))


class Probe:
    """What is armed in one process."""

    def __init__(self, armed: Sequence[Injection] = ()) -> None:
        self._armed: dict[Site, Injection] = {}
        self._passed: dict[Site, int] = {}
        self.arm(armed)

    def arm(self, injected: Sequence[Injection]) -> None:
        """Forget what was armed, and count anew for these."""
        self._armed = {one.site: one for one in injected}
        self._passed = dict.fromkeys(self._armed, 0)

    def at(self, site: Site) -> Act | None:
        """Pass a site: let happen what is armed there.

        Returns:
            NAN or TEAR where the caller is to let it happen.

        Raises:
            MemoryError, RuntimeError: that is what was armed.
        """
        armed = self._armed.get(site)
        if armed is None:
            return None
        passed = self._passed[site]
        self._passed[site] = passed + 1
        if passed < armed.after or (armed.times and passed >= armed.after + armed.times):
            return None
        return _happen(armed.act, site)

    def around(self, site: Site, call: Callable[P, T]) -> Callable[P, T]:
        """Return a function that passes a site before it does its work."""

        def probed(*args: P.args, **kwargs: P.kwargs) -> T:
            self.at(site)
            return call(*args, **kwargs)

        return probed


def _happen(act: Act, site: Site) -> Act | None:
    told = f"injected at site {_name(site)}"
    log.warning("%s: %s", told, act)
    match act:
        case Act.MEMORY:
            raise MemoryError(told)
        case Act.ERROR:
            raise RuntimeError(told)
        case Act.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Act.HANG:
            time.sleep(HANG_SECONDS)
        case Act.SLOW:
            time.sleep(SLOW_SECONDS)
        case Act.NAN | Act.TEAR:
            return act
    return None


def _name(site: Site) -> str:
    return f"{site.value} ({site.name.lower()})"


def _site(word: str) -> Site:
    for site in Site:
        if word in (str(site.value), site.name.lower()):
            return site
    names = ", ".join(f"{site.value} {site.name.lower()}" for site in Site)
    raise InputError(f"--test-faults: no site {word!r:.40}; there are {names}")


def _act(word: str) -> Act:
    if word not in list(Act):
        raise InputError(f"--test-faults: no act {word!r:.40}; there are {', '.join(Act)}")
    return Act(word)
