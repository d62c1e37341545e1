"""The greedy choice: the first of the highest, and none where a number is missing."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from deskside.kernels import native
from deskside.kernels.tiers import force_tier, tiers
from deskside.ops import sample

BODIES = [sample.best, native.best]


@pytest.fixture(params=tiers().available)
def tier(request: pytest.FixtureRequest) -> Iterator[None]:
    force_tier(request.param)
    yield
    force_tier("auto")


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 40, 129])
def test_the_highest_is_found_at_every_place(vocab: int) -> None:
    logits = torch.full((vocab, vocab), -7.0).fill_diagonal_(-6.5)
    assert native.best(logits).tolist() == list(range(vocab))


@pytest.mark.usefixtures("tier")
def test_of_equals_the_first() -> None:
    logits = torch.zeros(40, 40).triu()
    logits[torch.ones(40, 40).triu().bool()] = 2.0
    assert native.best(logits).tolist() == list(range(40))
    assert native.best(torch.zeros(1, 40)).tolist() == [0]
    assert native.best(torch.tensor([[0.0, -0.0]])).tolist() == [0]


@pytest.mark.parametrize("body", BODIES, ids=["plain", "native"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 36])
def test_a_row_that_is_not_all_numbers_has_none(
    body: Callable[[Tensor], Tensor], bad: float, place: int
) -> None:
    logits = torch.arange(111.0).view(3, 37)
    logits[1, place] = bad
    assert body(logits).tolist() == [36, -1, 36]


@pytest.mark.parametrize("body", BODIES, ids=["plain", "native"])
def test_no_number_is_too_large_and_no_rows_are_fine(body: Callable[[Tensor], Tensor]) -> None:
    most = torch.finfo(torch.float32).max
    assert body(torch.tensor([[most, -most, most, 0.0] * 9])).tolist() == [0]
    assert body(torch.zeros(0, 5)).tolist() == []
