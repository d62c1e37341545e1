"""A rank's process: comes to the meeting, loads its part, and follows until it may leave.

Torch loads only after the process is tied to its parent.
"""

import logging
import os
import sys
import traceback
from functools import partial

from deskside.errors import DesksideError
from deskside.machine.binding import bind
from deskside.runtime.followers import FollowOrder
from deskside.runtime.parentage import die_with

__all__ = ["follow_order", "follow_torchrun"]

log = logging.getLogger("deskside.machine")

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def follow_order() -> int:
    """Read an order from standard input, follow, and return the exit code."""
    order = FollowOrder.model_validate_json(sys.stdin.buffer.readline())
    die_with(order.parent)
    logging.basicConfig(format=LOG_FORMAT, level=logging.WARNING)
    from deskside.distributed.gloo import Meeting  # loads torch
    from deskside.distributed.room import Room
    from deskside.distributed.shared import SharedGroup
    from deskside.distributed.trace import Trace
    from deskside.kernels.exchange import take_seat
    from deskside.runtime.following import follow

    trace = Trace(order.trace, order.ranks)
    trace.enter(order.rank, "meeting")
    try:
        meeting = Meeting.come(order.host, order.port, order.rank, order.ranks, order.seconds)
        meeting.gather(lambda _absent: None, trace.read)
        room = Room.open(order.memory, order.ranks)
        group = SharedGroup(room, order.rank, take_seat, order.seconds, trace)
        follow(group, meeting, bind, partial(trace.load, order.rank))
    except DesksideError as error:
        trace.enter(order.rank, str(error))
        log.info("rank %d ends: %s", order.rank, error)
        return error.exit_code
    except Exception as fault:  # the top of this process
        trace.enter(order.rank, f"{type(fault).__name__}: {fault}")
        traceback.print_exc()
        return 1
    return 0


def follow_torchrun(master: str, seconds: float) -> None:
    """Come to the meeting of torchrun's ranks, with the address of rank 0, and follow.

    Raises:
        DesksideError: as `follow`.
    """
    from deskside.distributed.gloo import GlooGroup, Meeting  # loads torch
    from deskside.runtime.following import follow

    meeting = Meeting.torchrun(master, seconds)
    meeting.gather(lambda _absent: None)
    follow(GlooGroup(meeting), meeting, bind)


if __name__ == "__main__":
    code = follow_order()
    if code:  # the others wait for this end to show: an interpreter takes seconds to take down
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
