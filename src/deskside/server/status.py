"""One line every few seconds while the service is busy."""

import asyncio
import logging
from dataclasses import dataclass

from deskside.server.engine import RemoteEngine

__all__ = ["StatusLines"]

log = logging.getLogger("deskside.status")


@dataclass(slots=True)
class StatusLines:
    """Compares the engine's counts now and then; a line says what came between."""

    engine: RemoteEngine
    every: float
    """Seconds."""
    _busy: bool = False

    async def run(self) -> None:
        """Write lines for ever."""
        totals = self.engine.totals
        before = (totals.tokens, totals.verified, totals.accepted)
        while True:
            await asyncio.sleep(self.every)
            after = (totals.tokens, totals.verified, totals.accepted)
            if after != before or self.engine.tickets:
                log.info("%s", self._line(before, after))
                self._busy = True
            else:
                self._busy = False
            before = after

    def _line(self, before: tuple[int, int, int], after: tuple[int, int, int]) -> str:
        tokens, verified, accepted = (b - a for a, b in zip(before, after, strict=True))
        gauges = self.engine.gauges
        words = [
            f"running {gauges.running}, waiting {gauges.waiting}, {tokens / self.every:.1f} tok/s"
        ]
        if verified:
            words.append(f"accepted {100 * accepted / verified:.0f}% of {verified}")
        if after[1]:
            words.append(f"{100 * after[2] / after[1]:.0f}% since start")
        if not self._busy:
            words.append("first interval after idle")
        return ", ".join(words)
