"""The controller: a tumbling window, a pause, a probe; backing off when asked."""

from deskside.speculate.fallback import Controller, FallbackSettings, Probe, Trip


def rest(controller: Controller) -> int:
    """Run target-only steps up to the probe; return how many there were."""
    steps = 0
    while not controller.speculates:
        steps += 1
        event = controller.observe()
        assert (event is not None) == controller.speculates
    return steps


def test_a_poor_window_trips_and_a_probe_follows() -> None:
    controller = Controller(FallbackSettings())
    assert all(controller.observe(3, 5) is None for _ in range(6))
    trip = controller.observe(1, 5)
    assert trip == Trip(19, 35, 64)
    assert trip.line(0) == "request 0 accepted 54.3% of 35 proposals; target-only for 64 steps"
    assert not controller.speculates
    assert all(controller.observe() is None for _ in range(63))
    probe = controller.observe()
    assert probe == Probe(64)
    assert probe.line(0) == "request 0 probing speculation after 64 target-only steps"
    assert controller.speculates


def test_the_log_line_of_the_report() -> None:
    line = Trip(17, 32, 64).line(0)
    assert line == "request 0 accepted 53.1% of 32 proposals; target-only for 64 steps"


def test_a_window_at_the_threshold_stays_and_restarts_both_counters() -> None:
    controller = Controller(FallbackSettings(threshold=0.6, min_drafted=5, steps=2))
    assert controller.observe(3, 5) is None, "3 of 5 is not below 0.6"
    assert controller.speculates
    assert controller.observe(0, 4) is None, "a new window, not 3 of 9"
    assert controller.observe(0, 1) == Trip(0, 5, 2)


def test_the_window_is_judged_at_the_first_step_that_fills_it() -> None:
    controller = Controller(FallbackSettings(min_drafted=32))
    for _ in range(6):
        assert controller.observe(0, 5) is None
    assert controller.observe(0, 5) == Trip(0, 35, 64)


def test_a_rule_that_always_declines_trips() -> None:
    controller = Controller(FallbackSettings(min_drafted=4, steps=3))
    assert [controller.observe(0, 0) for _ in range(3)] == [None] * 3
    assert controller.observe(0, 0) == Trip(0, 4, 3)


def test_a_failed_probe_doubles_the_pause_up_to_the_most() -> None:
    controller = Controller(FallbackSettings(min_drafted=1, steps=64, backoff=True))
    pauses = []
    for _ in range(7):
        controller.observe(0, 5)
        pauses.append(rest(controller))
    assert pauses == [64, 128, 256, 512, 1024, 1024, 1024]
    assert controller.observe(5, 5) is None, "a good probe forgets the pauses"
    controller.observe(0, 5)
    assert rest(controller) == 64


def test_without_backing_off_the_pause_stays() -> None:
    controller = Controller(FallbackSettings(min_drafted=1, steps=3))
    for _ in range(3):
        controller.observe(0, 5)
        assert rest(controller) == 3


def test_a_long_pause_is_not_shortened_by_backing_off() -> None:
    controller = Controller(FallbackSettings(min_drafted=1, steps=2000, backoff=True))
    for _ in range(2):
        controller.observe(0, 5)
        assert rest(controller) == 2000


PAYING = FallbackSettings(min_drafted=10, steps=2, paying=True)


def test_a_poor_window_that_pays_does_not_trip() -> None:
    """Two of five stay: three tokens a step, for the price of 2.9 or of 3.1 plain ones."""
    for cost, speculates in ((2.9, True), (3.1, False)):
        controller = Controller(PAYING)
        assert controller.observe(2, 5, cost) is None
        assert (controller.observe(2, 5, cost) is None) is speculates
        assert controller.speculates is speculates
        fixed = Controller(FallbackSettings(min_drafted=5, steps=2))
        assert fixed.observe(2, 5, cost) == Trip(2, 5, 2)


def test_what_a_window_gained_ends_with_it() -> None:
    controller = Controller(PAYING)
    assert [controller.observe(5, 5, 1.5) for _ in range(2)] == [None, None]
    assert controller.observe(0, 5, 1.5) is None
    assert controller.observe(0, 5, 1.5) == Trip(0, 10, 2)


def test_a_good_window_stays_whatever_it_cost() -> None:
    controller = Controller(PAYING)
    assert controller.observe(8, 10, 100.0) is None
    assert controller.speculates


def test_declined_steps_do_not_pay() -> None:
    controller = Controller(FallbackSettings(min_drafted=4, steps=3, paying=True))
    assert [controller.observe(0, 0, 1.4) for _ in range(3)] == [None] * 3
    assert controller.observe(0, 0, 1.4) == Trip(0, 4, 3)
