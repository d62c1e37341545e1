"""What was measured on this machine for one model, and the file that keeps it.

One JSON file for each model's shapes, with the fingerprint of the machine it was made on. A file
that does not match is refused, never used in part. Measures nothing: `experts.profile` and
`runtime.measure` do.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deskside.errors import ProfileError
from deskside.machine.fingerprint import Fingerprint
from deskside.spec import ModelSpec

__all__ = ["Costs", "Profile", "Rates", "Reading", "load", "path_of", "store_costs", "store_rates"]

AGAIN = "run `deskside profile`"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Reading(_Record):
    """A plain read of host memory: threads, and bytes a second."""

    threads: Count
    rate: Positive


class Rates(_Record):
    """What moves experts, in bytes of packed weights a second."""

    expert_bytes: Count
    """Bytes of one expert: gate, up and down, codes and scales."""
    bank_bytes: Count
    """Bytes of the experts that were chosen from; small banks are read from caches."""
    reads: tuple[Reading, ...]
    """Plain reads of those bytes, by threads."""
    cpu_alone: Positive
    """One row through its experts in place."""
    fetch_alone: Positive
    """Copies of experts into slots."""
    device: Positive
    """One row through experts in slots."""
    cpu: Positive
    """In place, while copies run: beta_c."""
    fetch: Positive
    """Copies, while the CPU computes in place: beta_g."""

    @property
    def fetch_fraction(self) -> float:
        """Share of the missing bytes to fetch so that both paths end together: q*."""
        return self.fetch / (self.fetch + self.cpu)


class Costs(_Record):
    """Seconds of a draft, and of a forward by its rows: the numbers of a `CostTable`."""

    draft: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    forward: dict[Count, Positive]


class Profile(_Record):
    """All that is known of one model on one machine."""

    format: Literal[1] = 1
    fingerprint: Fingerprint
    rates: Rates | None = None
    costs: dict[str, Costs] = {}
    """By the options that a forward's time depends on, in the words of who measured."""


def path_of(folder: Path, spec: ModelSpec) -> Path:
    """Return the file of a model's shapes in a folder of profiles."""
    return folder / f"{hashlib.sha256(repr(spec).encode()).hexdigest()[:16]}.json"


def load(folder: Path, spec: ModelSpec, now: Fingerprint) -> Profile:
    """Read what was measured for a model.

    Args:
        folder: of profiles; see `config.profile_folder`.
        spec: the model.
        now: this machine as it is used now.

    Raises:
        ProfileError: there is none, it cannot be read, or it was made with another fingerprint.
    """
    path = path_of(folder, spec)
    try:
        profile = Profile.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ProfileError(f"no profile of this model ({path}): {AGAIN}") from error
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror}): {AGAIN}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ProfileError(f"{path}: {where}: {first['msg']}: {AGAIN}") from error
    differences = profile.fingerprint.differences(now)
    if differences:
        raise ProfileError(f"{path}: was made with {differences}: {AGAIN}")
    return profile


def store_rates(folder: Path, spec: ModelSpec, now: Fingerprint, rates: Rates) -> Path:
    """Keep rates, beside costs that still match; return the file.

    Raises:
        ProfileError: it cannot be written.
    """
    return _store(folder, spec, _known(folder, spec, now).model_copy(update={"rates": rates}))


def store_costs(
    folder: Path, spec: ModelSpec, now: Fingerprint, costs: Mapping[str, Costs]
) -> Path:
    """Keep costs of some options, beside what is known and still matches; return the file.

    Raises:
        ProfileError: it cannot be written.
    """
    known = _known(folder, spec, now)
    return _store(folder, spec, known.model_copy(update={"costs": {**known.costs, **costs}}))


def _known(folder: Path, spec: ModelSpec, now: Fingerprint) -> Profile:
    try:
        return load(folder, spec, now)
    except ProfileError:
        return Profile(fingerprint=now)


def _store(folder: Path, spec: ModelSpec, profile: Profile) -> Path:
    """Put the whole file in place at once, so that a reader never sees a part of it."""
    path = path_of(folder, spec)
    text = profile.model_dump_json(indent=2) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        raise ProfileError(
            f"{path}: cannot be written ({error.strerror}); XDG_CACHE_HOME names another folder"
        ) from error
    return path
