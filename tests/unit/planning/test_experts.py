"""Where experts run: backends, slots, fractions and predicted rates, on records."""

from dataclasses import replace
from typing import Any

import pytest

from deskside.config.engine import EngineOptions
from deskside.errors import CapacityError, InputError, ProfileError
from deskside.planning.experts import ExpertOptions, ExpertPlan
from deskside.planning.options import PlanOptions
from deskside.planning.plan import Plan, make_plan
from deskside.planning.profile import Rates, Reading
from deskside.planning.rate import Traffic, tokens_per_second
from tests.flash import flash
from tests.unit.planning.test_plan import GIB, SMALL, machine

EXPERT = 3 * 4096 * 2048 * 17 // 32
RATES = Rates(
    expert_bytes=EXPERT,
    bank_bytes=10**9,
    reads=(Reading(threads=1, rate=16e9), Reading(threads=2, rate=32e9)),
    cpu_alone=24e9,
    fetch_alone=12e9,
    device=96e9,
    cpu=18e9,
    fetch=7e9,
)


def plan(
    backend: str = "auto",
    slots: int | None = None,
    fraction: float | None = None,
    measured: Rates | None = None,
    have: int = 400 * GIB,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Plan:
    experts = ExpertOptions(backend, fraction, slots)  # type: ignore[arg-type]
    return make_plan(
        flash(**(config or {})),
        machine(have),
        PlanOptions(experts=experts, **options),
        *([measured] if measured else []),
    )


def experts(*words: Any, **named: Any) -> ExpertPlan:
    return plan(*words, **named).experts


def test_without_a_device_auto_is_in_place() -> None:
    found = experts()
    assert (found.backend, found.slots, found.nbytes, found.fraction) == ("cpu", 0, 0, 0.0)
    assert found.experts == 43 * 256
    assert found.expert_bytes == EXPERT
    assert found.lines()[0] == "cpu (auto): 11 008 experts of 12.75 MiB, all in place"
    assert experts("resident").slots == 0


def test_ranks_and_the_drafter_count() -> None:
    assert experts(drafter=True).experts == 46 * 256
    assert experts(tensor_parallel=4).expert_bytes == EXPERT // 4


def test_auto_slots_take_a_quarter_of_what_is_left() -> None:
    found = plan("fetch")
    spare = found.have - (found.need - found.experts.nbytes)
    assert found.experts.slots == spare // 4 // EXPERT
    assert plan("fetch", have=10**15).experts.slots == 43 * 256
    tight = plan("fetch", have=found.need - found.experts.nbytes + GIB)
    assert tight.experts.slots == tight.experts.fewest == 256
    assert not plan("fetch", have=1 * GIB).fits


@pytest.mark.parametrize(
    ("options", "fewest"),
    [
        ({"max_running": 1}, 6),
        ({"max_running": 5}, 30),
        ({"max_running": 50}, 256),
        ({"max_running": 1, "drafter": True}, 256),  # costs are measured up to 64 rows
        ({"max_running": 1, "exact": True}, 256),
        ({"max_running": 1, "exact": True, "prefill_chunk": 2, "step_tokens": 3}, 24),
    ],
)
def test_the_fewest_slots_follow_the_rows_of_a_step(options: dict[str, Any], fewest: int) -> None:
    def asked(slots: int | None) -> ExpertPlan:
        return experts("hybrid", slots, 0.01, **options)

    assert asked(None).fewest == fewest
    assert asked(fewest).slots == fewest
    with pytest.raises(
        CapacityError, match=rf"--expert-slots {fewest - 1}: .*need {fewest} slots; use"
    ) as caught:
        asked(fewest - 1)
    assert caught.value.exit_code == 3


def test_prompt_rows_need_their_fixed_places() -> None:
    assert experts("fetch", max_running=1).fewest == 256
    assert experts("hybrid", None, 0.28, max_running=1).fewest == 71


def test_more_slots_than_experts_are_of_no_use() -> None:
    assert experts("fetch", 10**6).slots == 43 * 256


def test_the_fraction_is_measured_or_given() -> None:
    assert experts("hybrid", measured=RATES).fraction == 7 / 25
    assert experts("hybrid", None, 0.5, measured=RATES).fraction == 0.5
    assert experts("fetch").fraction == 1.0
    with pytest.raises(
        ProfileError, match=r"--fetch-fraction auto: .*run `deskside profile`, or give a number"
    ):
        plan("hybrid")


def test_slots_that_do_not_fit_name_the_knob() -> None:
    beside = plan("fetch", 256).need
    found = plan("fetch", 1000, have=beside + 10 * EXPERT + 5)
    assert not found.fits
    assert found.knob == "use --expert-slots 266"
    with pytest.raises(CapacityError, match=r"expert slots 12\.45 GiB"):
        found.require_fit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fetch_fraction": 0.5}, "--fetch-fraction 0.5 needs --backend hybrid, got auto"),
        ({"backend": "fetch", "fetch_fraction": 0.5}, "--fetch-fraction 0.5 needs --backend"),
        ({"backend": "cpu", "expert_slots": 9}, "--expert-slots 9 needs --backend hybrid or"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PlanOptions.of(EngineOptions(**options))


def test_the_options_arrive() -> None:
    asked = EngineOptions(
        backend="hybrid", fetch_fraction=0.25, expert_slots=300, numerics="exact", max_running=2
    )
    found = PlanOptions.of(asked)
    assert found.experts == ExpertOptions("hybrid", 0.25, 300)
    assert found.exact


def test_report_and_json() -> None:
    found = plan("hybrid", 1000, measured=RATES)
    lines = found.report().splitlines()
    where = next(line for line in lines if line.startswith("experts"))
    assert where.endswith(
        "hybrid: 1 000 slots for 11 008 experts of 12.75 MiB; 0.28 of the missing ones fetched"
    )
    assert any(line.startswith("slots  ") and "12.45 GiB" in line for line in lines)
    rate = found.experts.rate
    assert rate is not None
    assert any(line.startswith(f"rate       predicted {rate:.1f} tok/s") for line in lines)
    told = found.to_json()["routed"]
    assert told["slots"] == 1000
    assert told["slot_bytes"] == 1000 * EXPERT
    assert told["predicted_tokens_per_s"] == rate
    assert told["not_predicted"] is None
    assert "not predicted: no profile" in plan().report()
    assert found.need == plan(measured=RATES).need + 1000 * EXPERT


TRAFFIC = Traffic(dense_bytes=32 * 10**7, layers=10, topk=6, expert_bytes=10**7)


def test_the_rate_in_place_is_bytes_over_rates() -> None:
    found = tokens_per_second(TRAFFIC, RATES, 0.0, 0.0, in_place=True)
    assert found == pytest.approx(1 / (0.01 + 10 * 6 * 1e7 / 24e9))


def test_the_rate_of_empty_slots_is_the_later_path_and_the_device() -> None:
    """Of six missing experts two are fetched at 0.28; both paths run at their shared rates."""
    both = max(1 / 7e9, 5 / 18e9) + 1 / 96e9
    found = tokens_per_second(TRAFFIC, RATES, 0.28, 0.0, in_place=False)
    assert found == pytest.approx(1 / (0.01 + 10 * 1e7 * both))
    alone = tokens_per_second(TRAFFIC, RATES, 1.0, 0.0, in_place=False)
    assert alone == pytest.approx(1 / (0.01 + 10 * 6 * 1e7 * (1 / 12e9 + 1 / 96e9)))


def test_the_rate_of_full_slots_is_the_device() -> None:
    found = tokens_per_second(TRAFFIC, RATES, 0.28, 1.0, in_place=False)
    assert found == pytest.approx(1 / (0.01 + 10 * 6 * 1e7 / 96e9))


def test_the_rate_grows_with_residency() -> None:
    rates = [tokens_per_second(TRAFFIC, RATES, 0.28, n / 10, in_place=False) for n in range(11)]
    assert rates == sorted(rates)
    slower = replace_rate(device=2e9)
    assert tokens_per_second(TRAFFIC, slower, 0.28, 1.0, in_place=False) < rates[-1]


def replace_rate(**changes: float) -> Rates:
    return RATES.model_copy(update=changes)


def test_one_plan_is_one_record() -> None:
    assert plan("fetch") == plan("fetch")
    assert replace(plan("fetch"), knob="x") != plan("fetch")
    assert experts(config=SMALL).expert_bytes == 3 * 128 * 128 * 17 // 32
