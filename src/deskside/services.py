"""What the commands call: the package itself, imported when it is called.

Torch and the model load only when a command needs them, so that `--help` answers at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from deskside.config.engine import EngineOptions
from deskside.config.environment import TorchrunPlace
from deskside.config.server import ServerOptions
from deskside.core import RankLoad

if TYPE_CHECKING:
    from deskside.llm import LLM
    from deskside.planning.plan import Plan
    from deskside.report.doctor import Check
    from deskside.report.profile import Profiled

__all__ = ["Progress", "Services", "package"]

Progress = Callable[[Sequence[RankLoad]], None]
"""Hears how far the load of every rank is."""


class Services(Protocol):
    """What the commands call; tests put something small in its place."""

    def open(
        self, model: str, options: EngineOptions, progress: Progress
    ) -> "AbstractContextManager[LLM]":
        """Load a checkpoint, and say how far every rank is."""
        ...

    def follow(self, place: TorchrunPlace, options: EngineOptions) -> None:
        """Be a rank that torchrun started and that does not lead, until it may leave."""
        ...

    def plan(self, model: str, options: EngineOptions) -> "Plan":
        """Say what a load would take, without one."""
        ...

    def profile(self, model: str, options: EngineOptions, seconds: float) -> "Profiled":
        """Measure this machine for a model's shapes."""
        ...

    def examine(self, model: str, options: EngineOptions) -> "tuple[Check, ...]":
        """Check this machine."""
        ...

    def clean(self) -> Iterable[str]:
        """Remove what runs that are over have left; say what was done."""
        ...

    def serve(self, model: str, engine: EngineOptions, options: ServerOptions) -> int:
        """Answer HTTP until a signal; return the exit code."""
        ...


class _Package:
    """The package itself, imported when it is called."""

    @contextmanager
    def open(self, model: str, options: EngineOptions, progress: Progress) -> "Iterator[LLM]":
        from deskside.llm import LLM
        from deskside.machine.binding import bound

        loaded = LLM.open(model, options, progress)
        with loaded as llm, bound(llm.placement.ranks[0].coordinator):
            yield llm  # this thread is the coordinator

    def follow(self, place: TorchrunPlace, options: EngineOptions) -> None:
        from deskside.runtime.follower import follow_torchrun

        follow_torchrun(place.master, options.rendezvous_timeout)

    def plan(self, model: str, options: EngineOptions) -> "Plan":
        from deskside.runtime.preview import preview

        return preview(model, options)

    def profile(self, model: str, options: EngineOptions, seconds: float) -> "Profiled":
        from deskside.runtime.profiling import profile

        return profile(model, options, seconds)

    def examine(self, model: str, options: EngineOptions) -> "tuple[Check, ...]":
        from deskside.runtime.examine import examine

        return examine(model, options)

    def clean(self) -> Iterable[str]:
        from deskside.runtime.leftovers import clean

        return clean()

    def serve(self, model: str, engine: EngineOptions, options: ServerOptions) -> int:
        from deskside.server.serve import serve

        return serve(model, engine, options)


def package() -> Services:
    """Return what serves the commands in earnest."""
    return _Package()
