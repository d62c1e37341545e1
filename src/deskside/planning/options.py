"""What a plan depends on besides model and machine.

Owns the options that decide about memory, and their refusals.
"""

from dataclasses import dataclass, field

from deskside.config.engine import EngineOptions
from deskside.config.environment import torchrun_place
from deskside.errors import InputError
from deskside.layout.kv import KvFormat
from deskside.planning.experts import ExpertOptions

__all__ = ["PlanOptions"]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan depends on besides model and machine.

    `kv_tokens` None lets the plan choose; so does `prefix_cache`, in bytes. `ranks_here` is how
    many of the ranks are on this machine, None for all. `drafter` says whether the drafter's
    weights are held.
    """

    kv_tokens: int | None = None
    kv_format: KvFormat = KvFormat.FP8
    tensor_parallel: int = 1
    ranks_here: int | None = None
    max_running: int = 8
    prefill_chunk: int = 2048
    step_tokens: int = 256
    drafter: bool = False
    exact: bool = False
    prefix_cache: int | None = 0
    experts: ExpertOptions = field(default_factory=ExpertOptions)

    def __post_init__(self) -> None:
        """Refuse counts below one, naming the option."""
        for flag, count in (
            ("--kv-tokens", self.kv_tokens),
            ("--tp", self.tensor_parallel),
            ("--max-running", self.max_running),
            ("--prefill-chunk", self.prefill_chunk),
            ("--step-tokens", self.step_tokens),
        ):
            if count is not None and count < 1:
                raise InputError(f"{flag} must be at least 1, got {count}")

    @property
    def here(self) -> int:
        """Ranks on this machine."""
        return self.ranks_here or self.tensor_parallel

    @staticmethod
    def of(options: EngineOptions) -> "PlanOptions":
        """Take the part of the engine's options that decides about memory."""
        place = torchrun_place()
        return PlanOptions(
            ranks_here=place.local_ranks if place else None,
            kv_tokens=None if options.kv_tokens == "auto" else options.kv_tokens,
            kv_format=KvFormat(options.kv_format),
            tensor_parallel=options.tp,
            max_running=options.max_running,
            prefill_chunk=options.prefill_chunk,
            step_tokens=options.step_tokens,
            drafter=options.speculation != "off",
            exact=options.numerics == "exact",
            prefix_cache=_budget(options),
            experts=ExpertOptions.of(options),
        )


def _budget(options: EngineOptions) -> int | None:
    """Return the bytes of snapshots that were asked for; None is auto."""
    match options.prefix_cache:
        case "auto":
            return None
        case "off":
            return 0
        case mebibytes:
            return int(mebibytes) * 2**20
