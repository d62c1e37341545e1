"""Counts in memory that processes share, by the compiled futex."""

from deskside.kernels import _native

__all__ = ["NativeSignals"]

WRAP = 0xFFFFFFFF


class NativeSignals:
    """Posts and waits; counts are taken modulo 2^32."""

    def post(self, word: int, count: int) -> None:
        """Set a count at an address and wake who waits for it."""
        _native.post(word, count & WRAP)

    def wait(self, word: int, least: int, spin: float, seconds: float) -> bool:
        """Wait until a count is reached; false when the seconds are over."""
        return _native.wait(word, least & WRAP, spin, seconds)
