"""How fast it went, in words.

Owns the arithmetic and the spelling of rates. Prefill and decode are never added up: the first
token belongs to prefill, since the prompt's forward draws it, and decode counts the tokens after.
"""

from dataclasses import dataclass, field

from deskside.core import Acceptance

__all__ = ["Rates"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Counts and seconds of one request.

    `prefill_s` runs from submission to the first token, `decode_s` from there to the last one.
    """

    prompt_tokens: int
    completion_tokens: int
    prefill_s: float
    decode_s: float
    acceptance: Acceptance = field(default_factory=Acceptance)

    @property
    def prefill(self) -> float | None:
        """Prompt tokens a second, or None where nothing was measured."""
        return _rate(self.prompt_tokens, self.prefill_s)

    @property
    def decode(self) -> float | None:
        """Tokens a second after the first one, or None where there was only one."""
        return _rate(self.completion_tokens - 1, self.decode_s)

    def line(self) -> str:
        """Return the one line that ends a run."""
        line = (
            f"prompt {_count(self.prompt_tokens)}, output {_count(self.completion_tokens)}; "
            f"prefill {_spell(self.prefill)}, decode {_spell(self.decode)}"
        )
        return f"{line}; {self._speculation()}" if self.acceptance.verified else line

    def _speculation(self) -> str:
        """Spell how much of what was proposed stayed, and what a decode step brought."""
        counts = self.acceptance
        share = 100 * counts.accepted / counts.verified
        step = (self.completion_tokens - 1) / counts.steps
        line = f"accepted {share:.1f}% of {counts.verified} proposals, {step:.2f} tokens a step"
        if not counts.trips:
            return line
        return f"{line}, paused {_times(counts.trips)}, tried again {_times(counts.probes)}"


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None


def _count(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _spell(rate: float | None) -> str:
    if rate is None:
        return "not measured"
    return f"{rate:.0f} tok/s" if rate >= 100 else f"{rate:.1f} tok/s"
