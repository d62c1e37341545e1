"""The oracles judge the mathematics, so prompt rows take the float path, as plain bodies do."""

from collections.abc import Iterator

import pytest

from deskside.kernels import _native
from deskside.kernels.tiers import force_tier, tiers


@pytest.fixture(scope="module", autouse=True)
def _float_prompt_rows() -> Iterator[None]:
    for tier in tiers().available:
        force_tier(tier)
        if not _native.prefers_integers():
            break
    yield
    force_tier("auto")
