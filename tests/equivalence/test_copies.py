"""What goes to the host in a step: one record after the draft, two integers a span after it.

Index arithmetic on inputs that the host made itself (`nonzero` of a row's kind) is no read.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from deskside.llm import LLM
from tests.equivalence.test_engine import opened, params

READS = {
    Tensor.tolist,
    Tensor.item,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__bool__,
    Tensor.__index__,
    Tensor.cpu,
    Tensor.numpy,
}


class Reads(TorchFunctionMode):
    """Notes every read of a tensor's values by the host, with how many values it took."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in READS:
            self.seen.append((func.__name__, args[0].numel()))
        return func(*args, **(kwargs or {}))


def reads(llm: LLM, temperature: float, **options: object) -> list[tuple[str, int]]:
    """Return the reads of one decode step of one request."""
    stream = llm.stream("x" * 9, params(temperature=temperature, max_tokens=20, **options))
    next(stream)
    next(stream)
    watch = Reads()
    with watch, torch.no_grad():
        next(stream)
    stream.close()
    return watch.seen


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_two_reads_a_step(drafting: Path, temperature: float) -> None:
    block = 5
    seen = reads(opened(drafting, speculation=3, fallback=False), temperature)
    assert seen == [("tolist", 2 * block), ("tolist", 2)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_one_read_without_speculation(drafting: Path, temperature: float) -> None:
    assert reads(opened(drafting, speculation="off"), temperature) == [("tolist", 2)]


def test_one_more_read_where_log_probabilities_are_wanted(drafting: Path) -> None:
    width, top = 3, 4
    seen = reads(opened(drafting, speculation=width, fallback=False), 0.8, logprobs=top)
    assert seen[1:] == [("tolist", 2), ("tolist", (width + 1) * (1 + 2 * top))]
