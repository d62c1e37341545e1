"""Measures this machine for a model and keeps the result: what `deskside profile` does."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from deskside.config.engine import Backend, EngineOptions
from deskside.config.environment import profile_folder
from deskside.device import HostDevice
from deskside.experts import profile as measuring
from deskside.kernels import native
from deskside.kernels.pool import set_workers
from deskside.kernels.tiers import force_tier
from deskside.machine.fingerprint import Fingerprint
from deskside.machine.machine import Machine, read_machine
from deskside.machine.placement import place
from deskside.ops.opset import OpSet
from deskside.planning.experts import ExpertOptions
from deskside.planning.options import PlanOptions
from deskside.planning.plan import make_plan
from deskside.planning.profile import Rates, store_rates
from deskside.runtime.profiles import fingerprint, spec_of
from deskside.spec import ModelSpec

__all__ = ["Profiled", "profile"]

PLACES: tuple[Backend, ...] = ("cpu", "hybrid", "fetch")


@dataclass(frozen=True, slots=True)
class Profiled:
    """What was measured, for which machine, where it lies, and what it predicts."""

    path: Path
    fingerprint: Fingerprint
    rates: Rates
    predicted: Mapping[str, float]
    """Tokens a second by backend, slots as auto takes them."""


def profile(model: str, options: EngineOptions, seconds: float) -> Profiled:
    """Measure for a folder's or built-in model's shapes and keep the rates; config.json is enough.

    Args:
        model: a folder or built-in name.
        options: how the model is to be run.
        seconds: that each of the measurements takes.

    Raises:
        InputError: no such folder, or more threads than CPUs.
        CapacityError: too little memory to measure in.
        ProfileError: the result cannot be written.
    """
    spec, machine = spec_of(model), read_machine()
    now = fingerprint(options, machine.topology)
    rates = _measured(spec, machine, options, now.threads, seconds)
    path = store_rates(profile_folder(), spec, now, rates)
    return Profiled(path, now, rates, _predicted(spec, machine, options, rates))


def _measured(
    spec: ModelSpec, machine: Machine, options: EngineOptions, threads: int, seconds: float
) -> Rates:
    bare = make_plan(spec, machine, PlanOptions())
    experts = measuring.bank_experts(spec, bare.experts.expert_bytes, machine.memory.available)
    ops = OpSet()
    if options.kernels == "native":
        force_tier(options.tier)
        ops = ops.replaced(native.bodies())

    def use_threads(count: int) -> None:
        set_workers(place(machine.topology, threads=count).ranks[0])
        torch.set_num_threads(count if options.kernels == "plain" else 1)

    bench = measuring.Bench.build(spec, ops, HostDevice(), experts)
    return measuring.measured(bench, native.read, _counts(threads), use_threads, seconds)


def _counts(threads: int) -> list[int]:
    """Return 1, 2, 4, ... and the threads themselves."""
    return sorted({threads, *(1 << bit for bit in range(threads.bit_length()))})


def _predicted(
    spec: ModelSpec, machine: Machine, options: EngineOptions, rates: Rates
) -> dict[str, float]:
    free = replace(options, backend="auto", fetch_fraction="auto", expert_slots="auto")
    asked = PlanOptions.of(free)
    found: dict[str, float] = {}
    for backend in PLACES:
        chosen = replace(asked, experts=ExpertOptions(backend))
        rate = make_plan(spec, machine, chosen, rates).experts.rate
        assert rate is not None
        found[backend] = rate
    return found
