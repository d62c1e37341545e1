"""Finds what was measured for a model on this machine, as it is to be used now; without torch."""

from deskside.config.engine import EngineOptions
from deskside.config.environment import profile_folder
from deskside.errors import ProfileError
from deskside.kernels.tiers import tiers
from deskside.layout.folder import resolve
from deskside.machine.fingerprint import Fingerprint
from deskside.machine.placement import place
from deskside.machine.topology import Topology, read_topology
from deskside.planning.profile import Rates, load
from deskside.spec import ModelSpec, read_config

__all__ = ["fingerprint", "known_rates", "spec_of"]


def fingerprint(options: EngineOptions, topology: Topology) -> Fingerprint:
    """Return what measurements on a machine with these options depend on.

    The topology is the one from before any thread was bound.
    """
    threads = place(topology).ranks[0].threads if options.threads == "auto" else options.threads
    if options.kernels == "plain":
        return Fingerprint.of(topology, threads, "plain")
    tier = tiers().chosen if options.tier == "auto" else options.tier
    return Fingerprint.of(topology, threads, tier)


def spec_of(model: str) -> ModelSpec:
    """Return the shapes of a folder or built-in name.

    Raises:
        InputError: no such folder.
        CheckpointError: config.json is missing or not served.
    """
    folder = resolve(model)
    return ModelSpec.from_config(read_config(folder), str(folder / "config.json"))


def known_rates(model: str, options: EngineOptions) -> Rates | ProfileError:
    """Return the rates of a model, or why there are none; raises as `spec_of` does."""
    try:
        profile = load(profile_folder(), spec_of(model), fingerprint(options, read_topology()))
    except ProfileError as error:
        return error
    return profile.rates or ProfileError("the profile has no rates: run `deskside profile`")
