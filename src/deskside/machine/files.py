"""Small files of /proc and /sys, which may not be there.

Owns the rule that a machine which does not say something is not an error.
"""

from pathlib import Path

__all__ = ["ROOT", "text"]

ROOT = Path("/")


def text(path: Path) -> str:
    """Return a small file's text, or nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
