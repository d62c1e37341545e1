"""The file of measured rates and costs: kept, read back, refused."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deskside.config.environment import profile_folder
from deskside.errors import ProfileError
from deskside.machine.fingerprint import Fingerprint
from deskside.planning.profile import (
    Costs,
    Rates,
    Reading,
    load,
    path_of,
    store_costs,
    store_rates,
)
from tests.miniature import MINIATURE

HERE = Fingerprint("Some CPU", "0-1", 2, "avx512")
RATES = Rates(
    expert_bytes=13_000_000,
    bank_bytes=10**9,
    reads=(Reading(threads=1, rate=16e9), Reading(threads=2, rate=30e9)),
    cpu_alone=25e9,
    fetch_alone=12e9,
    device=25e9,
    cpu=18e9,
    fetch=7e9,
)
COSTS = Costs(draft=0.25, forward={1: 1.0, 2: 1.125, 64: 3.0})


def test_what_is_stored_is_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "profiles"
    path = store_rates(folder, MINIATURE, HERE, RATES)
    store_costs(folder, MINIATURE, HERE, {"fast fp8": COSTS})
    store_costs(folder, MINIATURE, HERE, {"exact fp8": COSTS})
    found = load(folder, MINIATURE, HERE)
    assert found.rates == RATES
    assert found.costs == {"fast fp8": COSTS, "exact fp8": COSTS}
    assert [path] == list(folder.iterdir())


def test_the_fraction_balances_both_paths() -> None:
    assert RATES.fetch_fraction == 7e9 / 25e9


def test_every_model_has_its_own_file(tmp_path: Path) -> None:
    other = replace(MINIATURE, intermediate=256)
    store_rates(tmp_path, MINIATURE, HERE, RATES)
    assert path_of(tmp_path, other) != path_of(tmp_path, MINIATURE)
    with pytest.raises(ProfileError, match=r"no profile of this model .*run `deskside profile`"):
        load(tmp_path, other, HERE)


def test_another_machine_is_refused_and_starts_anew(tmp_path: Path) -> None:
    store_rates(tmp_path, MINIATURE, HERE, RATES)
    now = replace(HERE, threads=4)
    with pytest.raises(ProfileError, match=r"threads 2, now 4: run `deskside profile`$") as caught:
        load(tmp_path, MINIATURE, now)
    assert caught.value.exit_code == 2
    store_costs(tmp_path, MINIATURE, now, {"fast": COSTS})
    assert load(tmp_path, MINIATURE, now).rates is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "format: Input should be 1"),
        ({"rates": {**RATES.model_dump(), "cpu": -1.0}}, "rates.cpu: "),
        ({"costs": {"fast": {"draft": 0.0, "forward": {"0": 1.0}}}}, "costs.fast.forward"),
        ({"more": 1}, "more: Extra inputs"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = store_rates(tmp_path, MINIATURE, HERE, RATES)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ProfileError, match=words) as caught:
        load(tmp_path, MINIATURE, HERE)
    assert "\n" not in str(caught.value)
    store_rates(tmp_path, MINIATURE, HERE, RATES)
    assert load(tmp_path, MINIATURE, HERE).rates == RATES


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    path = store_rates(tmp_path, MINIATURE, HERE, RATES)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ProfileError, match="the file: Invalid JSON"):
        load(tmp_path, MINIATURE, HERE)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match=r"cannot be written .*XDG_CACHE_HOME"):
        store_rates(tmp_path / "file", MINIATURE, HERE, RATES)


def test_where_profiles_lie() -> None:
    below = Path("deskside", "profiles")
    assert profile_folder({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == "/c" / below
    assert profile_folder({"XDG_CACHE_HOME": "c", "HOME": "/h"}) == "/h/.cache" / below
    assert profile_folder({"HOME": "/h"}) == "/h/.cache" / below
    assert profile_folder({}) == Path.home() / ".cache" / below
    assert profile_folder() == Path(os.environ["XDG_CACHE_HOME"]) / below
