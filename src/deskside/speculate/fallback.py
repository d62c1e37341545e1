"""The fallback controller: a request whose proposals are not accepted stops paying for them.

It counts A accepted of G verified proposals of one request. At the first step with G >= m the
window is judged and both counters restart: A / G below tau sends the request to target-only for C
steps, then speculation is probed by a new window. Where the settings say so, a window that emitted
more tokens than plain steps of its cost would have does not trip, however few were accepted. It
looks at past steps and at fixed costs only, so the output's law stays the target's. A new request
starts from zero.
"""

from dataclasses import dataclass

__all__ = ["MOST_PAUSE", "Controller", "FallbackSettings", "Probe", "Trip"]

MOST_PAUSE = 1024
"""Target-only steps that backing off never passes, unless `steps` itself is larger."""


@dataclass(frozen=True, slots=True)
class FallbackSettings:
    """When a window trips and for how long."""

    threshold: float = 0.60
    """tau: a lower acceptance trips."""
    min_drafted: int = 32
    """m: verified proposals that fill a window."""
    steps: int = 64
    """C: target-only steps after a trip."""
    backoff: bool = False
    """Whether a failed probe doubles the pause."""
    paying: bool = False
    """Whether a window that pays is kept, by the costs of its steps."""


@dataclass(frozen=True, slots=True)
class Trip:
    """A window below the threshold: speculation pauses."""

    accepted: int
    verified: int
    steps: int

    def line(self, request: int) -> str:
        """Return the log line."""
        share = 100 * self.accepted / self.verified
        return (
            f"request {request} accepted {share:.1f}% of {self.verified} proposals; "
            f"target-only for {self.steps} steps"
        )


@dataclass(frozen=True, slots=True)
class Probe:
    """The pause is over: the next step speculates again."""

    steps: int

    def line(self, request: int) -> str:
        """Return the log line."""
        return f"request {request} probing speculation after {self.steps} target-only steps"


class Controller:
    """The controller of one request."""

    def __init__(self, settings: FallbackSettings) -> None:
        self._settings = settings
        self._accepted = 0
        self._verified = 0
        self._gain: float = 0
        self._pause = settings.steps
        self._left = 0
        self._probing = False

    @property
    def speculates(self) -> bool:
        """Whether the next step drafts; otherwise it is target-only."""
        return self._left == 0

    def observe(self, accepted: int = 0, verified: int = 0, cost: float = 1) -> Trip | Probe | None:
        """Learn from one step and return what changed.

        To be told of every step that could have speculated: with its figures where it drafted,
        without where it was target-only. A drafted step whose rule chose width 0 counts as one
        verified and none accepted, or a rule that always declines would never trip.

        Args:
            accepted: proposals that stayed.
            verified: proposals that the target looked at.
            cost: of the step, its draft included, in target-only steps.
        """
        assert 0 <= accepted <= verified
        if not self.speculates:
            assert verified == 0, "a target-only step verifies nothing"
            return self._rest()
        self._accepted += accepted
        self._verified += max(verified, 1)
        self._gain += accepted + 1 - cost
        if self._verified < self._settings.min_drafted:
            return None
        return self._judge()

    def _judge(self) -> Trip | None:
        settings = self._settings
        accepted, verified = self._accepted, self._verified
        kept = settings.paying and self._gain > 0
        failed = accepted / verified < settings.threshold and not kept
        probing = self._probing
        self._accepted = self._verified = 0
        self._gain = 0
        self._probing = False
        if not failed:
            self._pause = settings.steps
            return None
        if probing and settings.backoff:
            self._pause = max(settings.steps, min(2 * self._pause, MOST_PAUSE))
        self._left = self._pause
        return Trip(accepted, verified, self._pause) if self._pause else None

    def _rest(self) -> Probe | None:
        self._left -= 1
        if self._left:
            return None
        self._probing = True
        return Probe(self._pause)
