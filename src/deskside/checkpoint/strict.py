"""JSON from a checkpoint folder, read with suspicion.

Owns the parsing of untrusted JSON objects: no duplicate keys, no NaN, one line on any fault.
"""

import json
from collections import Counter
from typing import Any, NoReturn

from deskside.errors import CheckpointError

__all__ = ["AGAIN", "is_count", "parse_object", "shown"]

AGAIN = "the file is damaged, download it again"


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        CheckpointError: not UTF-8, not JSON, no object, or a key stands twice; names `where`.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise CheckpointError(f"{where}: key {shown(twice)} stands twice; {AGAIN}")
        return found

    def refuse(constant: str) -> NoReturn:
        raise CheckpointError(f"{where}: holds {constant}, which is no JSON; {AGAIN}")

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = f"{error!s:.80}"
        raise CheckpointError(f"{where}: is not JSON ({reason}); {AGAIN}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: must hold a JSON object; {AGAIN}")
    return value


def is_count(value: object) -> bool:
    """Say whether a parsed value is an integer in [0, 2^63) (JSON's true and 1.0 are not)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def shown(name: str) -> str:
    """Return an untrusted name fit for a message: short, and without control characters."""
    return name[:160] if name.isprintable() else ascii(name[:160])
