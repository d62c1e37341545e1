"""Where the routed experts will run, how many slots there are, and how fast that can be at most.

Owns the meaning of `--backend`, `--fetch-fraction` and `--expert-slots`. Pure arithmetic.
"""

from dataclasses import dataclass
from typing import Any, Literal

from deskside.config.engine import Backend, EngineOptions
from deskside.errors import CapacityError, InputError, ProfileError
from deskside.planning.amounts import amount, grouped
from deskside.planning.profile import Rates
from deskside.planning.rate import Traffic, tokens_per_second
from deskside.planning.split import fewest_slots, fixed_places
from deskside.spec import ModelSpec

__all__ = ["ExpertOptions", "ExpertPlan", "Need", "plan_experts"]

Place = Literal["cpu", "resident", "hybrid", "fetch"]
AUTO_SHARE = 4
"""Slots take one part in this many of the memory that is left, or the fewest that can do."""

UNKNOWN = ProfileError("no profile was looked for: run `deskside profile`")


@dataclass(frozen=True, slots=True)
class ExpertOptions:
    """What was asked for; None lets the plan choose."""

    backend: Backend = "auto"
    fraction: float | None = None
    slots: int | None = None

    @staticmethod
    def of(options: EngineOptions) -> "ExpertOptions":
        """Take the part of the engine's options that decides about experts.

        Raises:
            InputError: a fraction or slots where the backend has none.
        """
        fraction = None if options.fetch_fraction == "auto" else options.fetch_fraction
        slots = None if options.expert_slots == "auto" else options.expert_slots
        if fraction is not None and options.backend != "hybrid":
            raise InputError(
                f"--fetch-fraction {fraction:g} needs --backend hybrid, got {options.backend}"
            )
        if slots is not None and options.backend not in ("hybrid", "fetch"):
            raise InputError(
                f"--expert-slots {slots} needs --backend hybrid or fetch, got {options.backend}"
            )
        return ExpertOptions(options.backend, fraction, slots)


@dataclass(frozen=True, slots=True)
class Need:
    """What the rest of a plan says about experts. Bytes are of one rank."""

    traffic: Traffic
    experts: int
    """Of all layers that are held."""
    rows: int
    """Most generated rows of one step."""
    spare: int
    """Bytes that are left beside all else."""


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """Where experts run."""

    asked: Backend
    backend: Place
    slots: int
    fewest: int
    """Slots that one step can need."""
    experts: int
    """Of all layers."""
    expert_bytes: int
    fraction: float
    """Of the missing experts of a generated row that is fetched."""
    rate: float | None
    """Tokens a second of one request, predicted from memory traffic, without speculation."""
    unpredicted: str | None
    """Why there is no rate."""

    @property
    def nbytes(self) -> int:
        """Bytes of the slots."""
        return self.slots * self.expert_bytes

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "asked": self.asked,
            "backend": self.backend,
            "slots": self.slots,
            "fewest_slots": self.fewest,
            "experts": self.experts,
            "expert_bytes": self.expert_bytes,
            "fetch_fraction": self.fraction,
            "slot_bytes": self.nbytes,
            "predicted_tokens_per_s": self.rate,
            "not_predicted": self.unpredicted,
        }

    def lines(self) -> list[str]:
        """Return two lines to read."""
        chosen = f"{self.backend} (auto)" if self.asked == "auto" else self.backend
        each = f"{grouped(self.experts)} experts of {amount(self.expert_bytes)}"
        if self.slots:
            where = (
                f"{chosen}: {grouped(self.slots)} slots for {each}; "
                f"{self.fraction:.2f} of the missing ones fetched"
            )
        else:
            where = f"{chosen}: {each}, all in place"
        rate = (
            f"predicted {self.rate:.1f} tok/s without speculation, by memory traffic alone"
            if self.rate is not None
            else f"not predicted: {self.unpredicted}"
        )
        return [where, rate]


def plan_experts(
    spec: ModelSpec, options: ExpertOptions, need: Need, measured: Rates | ProfileError = UNKNOWN
) -> ExpertPlan:
    """Decide where experts run on a machine without a device: its second pool are the slots.

    Args:
        spec: the model.
        options: what was asked for.
        need: of this plan.
        measured: rates of this model on this machine, or why there are none.

    Raises:
        ProfileError: the fraction is to be measured, and was not.
        CapacityError: fewer slots than one step can need.
    """
    backend: Place = "cpu" if options.backend == "auto" else options.backend
    fraction = _fraction(backend, options, measured)
    fewest = slots = 0
    if backend in ("hybrid", "fetch"):
        prompt = len(fixed_places(spec.experts, fraction))
        fewest = max(fewest_slots(spec.experts, spec.topk, need.rows), prompt)
        slots = _slots(options, need, fewest)
    return ExpertPlan(
        asked=options.backend,
        backend=backend,
        slots=slots,
        fewest=fewest,
        experts=need.experts,
        expert_bytes=need.traffic.expert_bytes,
        fraction=fraction,
        rate=None
        if isinstance(measured, ProfileError)
        else tokens_per_second(
            need.traffic, measured, fraction, slots / need.experts, in_place=not slots
        ),
        unpredicted=str(measured) if isinstance(measured, ProfileError) else None,
    )


def _fraction(backend: Place, options: ExpertOptions, measured: Rates | ProfileError) -> float:
    if backend != "hybrid":
        return 1.0 if backend == "fetch" else 0.0
    if options.fraction is not None:
        return options.fraction
    if isinstance(measured, ProfileError):
        raise ProfileError(f"--fetch-fraction auto: {measured}, or give a number")
    return measured.fetch_fraction


def _slots(options: ExpertOptions, need: Need, fewest: int) -> int:
    """Return the slots asked for, or a share of what is left.

    Raises:
        CapacityError: fewer than one step can need.
    """
    if options.slots is None:
        room = need.spare // AUTO_SHARE // need.traffic.expert_bytes
        return max(fewest, min(room, need.experts))
    if options.slots < fewest:
        raise CapacityError(
            f"--expert-slots {options.slots}: one step of up to {need.rows} generated rows can "
            f"need {fewest} slots; use --expert-slots {fewest}, or fewer --max-running"
        )
    return min(options.slots, need.experts)
