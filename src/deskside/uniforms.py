"""Uniform numbers as a pure function of who asks for them.

A counter-based generator (Philox 4x32 with ten rounds, Salmon et al. 2011) maps seed, choice,
position, index and purpose to one number. Integer arithmetic only: the same on every rank and
device, nothing to roll back, every run can be replayed.
"""

from enum import IntEnum

__all__ = ["Purpose", "philox", "uniform"]

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


class Purpose(IntEnum):
    """What a number is drawn for; no two draws share position and purpose."""

    TARGET = 0
    ACCEPT = 1
    RESIDUAL = 2
    DRAFT = 3


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return four 32-bit words for a counter of four words and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        left, right = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (right >> 32) ^ c1 ^ k0,
            right & WORD,
            (left >> 32) ^ c3 ^ k1,
            left & WORD,
        )
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int, purpose: Purpose, index: int = 0) -> float:
    """Return a number in [0, 1) with 53 random bits.

    Args:
        seed: of the request, below 2^64.
        choice: which of a request's parallel answers.
        position: absolute position the number decides.
        purpose: what it is drawn for.
        index: further distinguishes draws of one position (draft draws: the proposal).
    """
    words = philox((position & WORD, index & WORD, choice & WORD, purpose), _key(seed))
    return ((words[0] << 32 | words[1]) >> 11) * 2.0**-53


def _key(seed: int) -> tuple[int, int]:
    return seed & WORD, seed >> 32 & WORD
