"""A rank that follows, from the leader's setup to its leave."""

import logging
from collections.abc import Callable, Iterable

import torch

from deskside.checkpoint.index import Checkpoint
from deskside.checkpoint.loader import Progress
from deskside.distributed.gloo import Meeting
from deskside.distributed.group import Group
from deskside.engine.follower import Follower
from deskside.layout.folder import resolve
from deskside.planning.plan import plan_folder
from deskside.runtime.hold import hold
from deskside.runtime.profiles import known_rates
from deskside.runtime.ranks import told_setup

__all__ = ["follow"]

LOG = logging.getLogger("deskside.machine")


@torch.no_grad()
def follow(
    group: Group,
    meeting: Meeting,
    bind: Callable[[Iterable[int]], str | None],
    progress: Progress | None = None,
) -> None:
    """Load what the leader says and follow it.

    Args:
        group: the ranks, all of which have come.
        meeting: where they came together.
        bind: ties this thread to CPUs, or says what is lost.
        progress: is told bytes read and bytes to read in all.

    Raises:
        DesksideError: a rank is gone, or this one cannot do its part.
    """
    setup = told_setup(group)
    model, options = setup.model, setup.options
    plan = plan_folder(model, options, known_rates(model, options))
    held = hold(Checkpoint.open(resolve(model)), plan, options, group, meeting, progress)
    refused = bind(held.own.coordinator)
    if refused is not None:
        LOG.warning("the coordinator of rank %d %s", group.rank, refused)
    Follower(
        group,
        held.target,
        held.state,
        held.owners,
        held.builder,
        held.speculation,
        held.probe,
    ).run()
