"""What every test shares: one hypothesis profile, threads, markers that skip themselves."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")

# Workers of pytest-xdist share the cores: more threads than cores only wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seconds", type=float, default=600.0, help="how long the soak and the attack last"
    )


@pytest.fixture(scope="session")
def seconds(request: pytest.FixtureRequest) -> float:
    """How long a test lasts that could go on for ever."""
    return float(request.config.getoption("--seconds"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither find nor leave profiles in the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def _native_defaults() -> Iterator[None]:
    """Leave the compiled kernels' tier and threads as they were."""
    from deskside.kernels import native
    from deskside.kernels.tiers import force_tier, tiers

    before, threads = tiers(), native.threads()
    yield
    force_tier(before.chosen if before.forced else "auto")
    native.set_threads(threads)
