"""A whole engine led over threads: the leader runs a body, the others follow."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from deskside.checkpoint.index import Checkpoint
from deskside.config.engine import EngineOptions
from deskside.distributed.group import LEADER
from deskside.engine.follower import Follower
from deskside.llm import LLM
from deskside.planning.plan import plan_folder
from deskside.runtime.build import decided, leading
from deskside.runtime.hold import hold
from deskside.runtime.ranks import Ensemble
from deskside.text.tokenizer import Tokenizer
from tests.distributed.threads import ThreadGroup, as_threads

R = TypeVar("R")


@dataclass
class Ranks:
    """What to do to a rank before it runs; by default nothing."""

    prepare: Callable[[ThreadGroup], None] = lambda group: None
    follow: Callable[[Follower], None] = Follower.run


def led(
    folder: Path, options: EngineOptions, body: Callable[[LLM], R], ranks: Ranks | None = None
) -> R:
    """Run a body with `options.tp` ranks as threads; return what it returned."""
    ranks = ranks or Ranks()
    checkpoint = Checkpoint.open(folder)
    plan = plan_folder(str(folder), options)
    options = decided(options, plan)

    @torch.no_grad()
    def one(group: ThreadGroup) -> R | None:
        held = hold(checkpoint, plan, options, group)
        ranks.prepare(group)
        if group.rank != LEADER:
            ranks.follow(
                Follower(
                    group, held.target, held.state, held.owners, held.builder, held.speculation
                )
            )
            return None
        ensemble = Ensemble(group)
        tokenizer = Tokenizer.open(folder)
        with LLM(leading(plan, options, tokenizer, held, ensemble)) as llm:
            return body(llm)

    found = as_threads(options.tp, one)[LEADER]
    assert found is not None
    return found
