"""Which build this is: version, the commit it was made from where that is known, and its kernels.

Reads what an installer recorded, or the checkout that the package runs from. Starts no program and
loads no torch.
"""

import json
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

__all__ = ["describe"]

COMMIT = re.compile(r"[0-9a-f]{40,64}")


def describe(package: Path = Path(__file__).parents[1]) -> str:
    """Return one line such as `deskside 0.1.0 (commit 0123456789ab, kernels avx512)`."""
    commit = _recorded_commit() or _checkout_commit(package)
    known = "commit unknown" if commit is None else f"commit {commit[:12]}"
    return f"deskside {_version()} ({known}, kernels {_kernels()})"


def _kernels() -> str:
    """Return the instruction set that the compiled kernels use on this processor."""
    try:
        from deskside.kernels.tiers import tiers
    except ImportError:
        return "not compiled"
    return tiers().chosen


def _version() -> str:
    try:
        return distribution("deskside").version
    except PackageNotFoundError:
        return "unknown version (not installed)"


def _recorded_commit() -> str | None:
    """Return the commit that pip noted for an install from a repository address."""
    try:
        record = distribution("deskside").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    commit = json.loads(record or "{}").get("vcs_info", {}).get("commit_id")
    return _checked(commit) if isinstance(commit, str) else None


def _checkout_commit(package: Path) -> str | None:
    """Return HEAD of the checkout whose src/ folder holds the package."""
    folder = package.parents[1] / ".git"
    head = _read(folder / "HEAD")
    if package.parent.name != "src" or head is None:
        return None
    if not head.startswith("ref: "):
        return _checked(head)
    name = head.removeprefix("ref: ")
    loose = _read(folder / name)
    return _checked(loose) if loose else _packed(_read(folder / "packed-refs") or "", name)


def _packed(refs: str, name: str) -> str | None:
    lines = (line.split(" ", 1) for line in refs.splitlines() if line.endswith(f" {name}"))
    return next((_checked(commit) for commit, found in lines if found == name), None)


def _checked(commit: str) -> str | None:
    return commit if COMMIT.fullmatch(commit) else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
