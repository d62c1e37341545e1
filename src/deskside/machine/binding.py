"""Ties the calling thread to CPUs.

Owns the system call and the words for a system that forbids it. Threads that are started later
inherit the tie; memory that they touch first lies on the node of these CPUs.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = ["bind", "bound"]

LOG = logging.getLogger(__name__)


def bind(cpus: Iterable[int]) -> str | None:
    """Tie the calling thread to CPUs; where that is forbidden, return what is lost instead."""
    try:
        os.sched_setaffinity(0, set(cpus))
    except OSError as error:
        return (
            f"cannot be bound to its CPUs ({error.strerror}): it may run on a worker's core, and "
            "memory may come from another node; a container needs sched_setaffinity allowed"
        )
    return None


@contextmanager
def bound(cpus: Iterable[int]) -> Iterator[None]:
    """Tie the calling thread to CPUs for a while; warn where that is forbidden."""
    before = os.sched_getaffinity(0)
    refused = bind(cpus)
    if refused is not None:
        LOG.warning("the coordinator %s", refused)
    try:
        yield
    finally:
        if refused is None:
            os.sched_setaffinity(0, before)
