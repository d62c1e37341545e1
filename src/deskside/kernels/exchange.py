"""Exchanges between ranks over shared memory, each in one compiled call."""

from deskside.distributed.room import LINE, PLACE, Room, Seat
from deskside.kernels import _native

__all__ = ["take_seat"]


def take_seat(room: Room, rank: int) -> Seat:
    """Take a rank's seat in a room; turns are counted modulo 2^32 there."""
    return _native.Seat(room.memory.data_ptr(), LINE, PLACE, room.ranks, rank)
