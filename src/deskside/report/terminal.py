"""What a run shows: text as it comes, then one line or one JSON object.

Owns newlines and the spelling of a result; knows no model and no options. It reads deltas and
results by their fields, so that it stands below whatever makes them.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Protocol, TextIO

from deskside.core import Acceptance, FinishReason
from deskside.report.status import Rates

__all__ = ["Delta", "Result", "as_json", "rates_of", "show"]


class Result(Protocol):
    """A finished request; times as in `Rates`, `first_token_s` since it was submitted."""

    @property
    def text(self) -> str: ...  # noqa: D102 - the class says it
    @property
    def token_ids(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def prompt_tokens(self) -> int: ...  # noqa: D102
    @property
    def finish(self) -> FinishReason: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102
    @property
    def prefill_s(self) -> float: ...  # noqa: D102
    @property
    def decode_s(self) -> float: ...  # noqa: D102
    @property
    def first_token_s(self) -> float: ...  # noqa: D102
    @property
    def acceptance(self) -> Acceptance: ...  # noqa: D102


class Delta(Protocol):
    """The next piece of text; the last one carries the result."""

    @property
    def text(self) -> str: ...  # noqa: D102
    @property
    def result(self) -> Result | None: ...  # noqa: D102


def show(deltas: Iterable[Delta], out: TextIO | None, *, close_line: bool) -> Result:
    """Write text to `out` as it comes, and return the result.

    The line is closed, if asked, also when an error or a signal ends the text early; where no text
    was written and no result came, there is no line to close.
    """
    result, open_line = None, False
    try:
        for delta in deltas:
            result = delta.result
            open_line = open_line or bool(delta.text) or result is not None
            if out is not None and delta.text:
                out.write(delta.text)
                out.flush()
    finally:
        if out is not None and close_line and open_line:
            out.write("\n")
            out.flush()
    assert result is not None, "the last delta carries the result"
    return result


def rates_of(result: Result) -> Rates:
    """Return the counts and times of `result`."""
    return Rates(
        prompt_tokens=result.prompt_tokens,
        completion_tokens=len(result.token_ids),
        prefill_s=result.prefill_s,
        decode_s=result.decode_s,
        acceptance=result.acceptance,
    )


def as_json(result: Result, model: str, kv_tokens: int) -> str:
    """Return everything about `result` as one JSON object on one line."""
    rates = rates_of(result)
    return json.dumps(
        {
            "model": model,
            "text": result.text,
            "token_ids": list(result.token_ids),
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": len(result.token_ids),
            "finish_reason": result.finish.value,
            "seed": result.seed,
            "prefill_tokens_per_s": rates.prefill,
            "decode_tokens_per_s": rates.decode,
            "time_to_first_token_s": result.first_token_s,
            "decode_steps": result.acceptance.steps,
            "verified_proposals": result.acceptance.verified,
            "accepted_proposals": result.acceptance.accepted,
            "drafting_pauses": result.acceptance.trips,
            "drafting_probes": result.acceptance.probes,
            "kv_tokens": kv_tokens,
        },
        ensure_ascii=False,
    )
