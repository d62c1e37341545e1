"""What a step costs by its rows: measured points made monotone, straight lines between them."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["MEASURED_ROWS", "CostTable"]

MEASURED_ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
"""Rows of a forward at which costs are measured."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of a draft and of a forward by its rows."""

    draft: float
    """D, seconds of one draft pass."""
    rows: tuple[int, ...]
    """Ascending, from 1."""
    seconds: tuple[float, ...]
    """V at `rows`, never falling."""

    @staticmethod
    def measured(draft: float, seconds: Mapping[int, float]) -> "CostTable":
        """Make a table of raw measurements.

        A smaller forward that was measured as dearer than a larger one counts as much as that one:
        what disturbs a measurement only ever adds to it.

        Args:
            draft: seconds of a draft pass, 0 or more.
            seconds: of a forward by its rows; 1 must be among them.
        """
        assert 1 in seconds
        assert draft >= 0
        assert min(seconds.values()) > 0
        rows = tuple(sorted(seconds))
        falling = accumulate((seconds[n] for n in reversed(rows)), min)
        return CostTable(draft, rows, tuple(falling)[::-1])

    def forward(self, rows: int) -> float:
        """Return V of a number of rows; beyond the last point its last slope goes on."""
        assert rows >= 1
        if len(self.rows) == 1:
            return self.seconds[0] * rows
        right = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        low, high = self.rows[right - 1], self.rows[right]
        start, end = self.seconds[right - 1], self.seconds[right]
        return start + (end - start) * (rows - low) / (high - low)

    def step(self, rows: int) -> float:
        """Return D + V of a number of rows."""
        return self.draft + self.forward(rows)

    def relative(self, width: int) -> float:
        """Return what a step of one request costs that verifies `width`, in target-only steps."""
        return self.step(1 + width) / self.forward(1)

    def widths(self, most: int) -> tuple[float, ...]:
        """Return D + V(k) of one request for k = 0..most: the anchor and k proposals."""
        return tuple(self.step(1 + k) for k in range(most + 1))

    def curve(self) -> str:
        """Return the table as one line, in milliseconds."""
        points = (f"{n}: {1e3 * s:.2f}" for n, s in zip(self.rows, self.seconds, strict=True))
        return f"draft {1e3 * self.draft:.2f} ms; forward by rows in ms: {', '.join(points)}"
