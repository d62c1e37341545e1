"""A profile as lines of text and as JSON; changes no number."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from deskside.machine.fingerprint import Fingerprint
from deskside.planning.amounts import amount
from deskside.planning.profile import Rates

__all__ = ["Profiled", "profile_json", "profile_lines"]


class Profiled(Protocol):
    """What a measurement leaves; rates in bytes a second, predictions in tokens a second."""

    @property
    def path(self) -> Path: ...  # noqa: D102 - the class says it
    @property
    def fingerprint(self) -> Fingerprint: ...  # noqa: D102
    @property
    def rates(self) -> Rates: ...  # noqa: D102
    @property
    def predicted(self) -> Mapping[str, float]: ...  # noqa: D102


def profile_lines(found: Profiled) -> str:
    """Return the profile as lines to read."""
    now, rates = found.fingerprint, found.rates
    reads = ", ".join(f"{_rate(one.rate)} with {one.threads}" for one in rates.reads)
    predicted = ", ".join(f"{name} {rate:.1f}" for name, rate in found.predicted.items())
    return "\n".join(
        (
            f"machine    {now.cpu}: {now.threads} threads on CPUs {now.cpus}, {now.kernels} "
            f"kernels; device {now.device}, driver {now.driver}",
            f"experts    {amount(rates.expert_bytes)} each, out of {amount(rates.bank_bytes)}",
            f"read       {reads} threads",
            f"alone      in place {_rate(rates.cpu_alone)}, fetch {_rate(rates.fetch_alone)}, in "
            f"slots {_rate(rates.device)}",
            f"together   in place {_rate(rates.cpu)}, fetch {_rate(rates.fetch)}",
            f"q*         {rates.fetch_fraction:.3f} of the missing experts are to be fetched",
            f"predicted  {predicted} tok/s without speculation, by memory traffic alone",
            f"kept in    {found.path}",
        )
    )


def profile_json(found: Profiled) -> dict[str, Any]:
    """Return the profile as plain values, rates in bytes a second."""
    return {
        "path": str(found.path),
        "fingerprint": asdict(found.fingerprint),
        "rates": found.rates.model_dump(),
        "fetch_fraction": found.rates.fetch_fraction,
        "predicted_tokens_per_s": dict(found.predicted),
    }


def _rate(rate: float) -> str:
    return f"{rate / 1e9:.2f} GB/s"
