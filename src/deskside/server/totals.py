"""What the engine brought since the start, in three counts."""

from dataclasses import dataclass

from deskside.core import Emission

__all__ = ["Totals"]


@dataclass(slots=True)
class Totals:
    """Counts since the start."""

    tokens: int = 0
    verified: int = 0
    accepted: int = 0

    def add(self, emission: Emission) -> None:
        """Count an emission."""
        self.tokens += len(emission.tokens)
        self.verified += emission.verified
        self.accepted += emission.accepted
