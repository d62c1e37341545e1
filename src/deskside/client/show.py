"""What `deskside status` and `deskside requests` print."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["requests_lines", "status_lines"]


def status_lines(url: str, version: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """Return how a service stands, from its /version and /admin/requests."""
    return [
        f"service   {url}, {state['phase']}",
        f"model     {version['model']}, {version['kv_tokens']} tokens of KV, "
        f"{'speculates' if version['speculates'] else 'does not speculate'}",
        f"build     {version['version']}",
        f"requests  {state['running']} running of {version['max_running']}, "
        f"{state['waiting']} waiting of {version['max_queue']}",
        f"free      {state['free_pages']} pages, {state['free_slots']} slots",
    ]


def requests_lines(requests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the sequences that run or wait."""
    if not requests:
        return ["nothing runs or waits"]
    names = list(requests[0])
    rows = [names, *([str(one[name]) for name in names] for one in requests)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(names))]
    return [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
