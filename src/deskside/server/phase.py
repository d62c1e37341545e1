"""Where a service stands, from its start to its end."""

from enum import StrEnum

__all__ = ["Phase"]


class Phase(StrEnum):
    """Where the service stands."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"
