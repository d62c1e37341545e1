"""One exchange between ranks over shared memory, in one compiled call."""

from deskside.kernels import _native

__all__ = ["exchange"]

WRAP = 0xFFFFFFFF


def exchange(
    memory: int,
    line: int,
    place: int,
    ranks: int,
    rank: int,
    turn: int,
    parts: list[int],
    writes: bool,
    first: int,
    last: int,
    spin: float,
    seconds: float,
) -> bool:
    """Pass a rank's parts and wait for others'; see `distributed.shared.Exchange`.

    Turns are counted modulo 2^32.
    """
    return _native.exchange(
        memory,
        line,
        place,
        ranks,
        rank,
        turn & WRAP,
        parts,
        writes,
        first,
        last,
        spin,
        seconds,
    )
