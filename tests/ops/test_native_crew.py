"""Workers: tied to their CPUs, quiet when crowded, and missed by name when they die or hang."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from deskside.errors import LostWorkerError
from deskside.kernels import native, pool
from deskside.machine.placement import RankPlace

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("_native_defaults")]

CPUS = tuple(sorted(os.sched_getaffinity(0)))
PATIENCE = 1.0


def rank(workers: int, *, works: bool, spin: bool = True) -> RankPlace:
    tied = tuple((CPUS[n % len(CPUS)],) for n in range(workers))
    return RankPlace(0, (0,), CPUS, CPUS, tied, works, spin)


@pytest.fixture(params=[True, False], ids=["caller works", "caller waits"])
def works(request: pytest.FixtureRequest) -> Iterator[bool]:
    pool.set_patience(30)
    yield request.param
    pool.set_patience(60)


def job() -> torch.Tensor:
    """Run something long enough for every worker to have a part in it."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 512, generator=generator) for n in (48, 1024))
    return native.linear(x, weight)


def many() -> None:
    """Run jobs until a fault is surely met."""
    for _ in range(3000):
        job()


def strike(worker: int, fault: str) -> str:
    """Set a fault, run jobs until it is met, and return what was said."""
    pool.set_fault(worker, fault)
    with pytest.raises(LostWorkerError) as met:
        many()
    return str(met.value)


def test_every_worker_is_on_its_cpu_under_its_name(works: bool) -> None:
    assert pool.set_workers(rank(2, works=works)) == ()
    assert pool.threads() == 2 + works
    found = {}
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name.startswith("deskside-"):
            found[name] = os.sched_getaffinity(int(task.name))
    assert found == {f"deskside-{n}": {CPUS[(n - 1) % len(CPUS)]} for n in (1, 2)}


def test_the_result_depends_on_no_crew(works: bool) -> None:
    native.set_threads(1)
    expected = job()
    for workers in (1, 2, 5):
        for spin in (True, False):
            pool.set_workers(rank(workers, works=works, spin=spin))
            for pause in (0, 0, 0.001, 0):
                time.sleep(pause)
                assert job().equal(expected)


def test_workers_with_cores_of_their_own_wait_a_moment_and_then_sleep() -> None:
    pool.set_workers(rank(1, works=True))
    for _ in range(20):
        job()
        time.sleep(0.01)  # a hundred times what a worker keeps its core for
    rounds, sleeps = pool.waits()
    assert rounds > 0
    assert sleeps > 0


@pytest.mark.parametrize("workers", [1, 2 * len(CPUS) + 1])
def test_crowded_workers_never_spin(works: bool, workers: int) -> None:
    """As placed where ranks share cores, or where a quota grants less: not a single round."""
    pool.set_workers(rank(workers, works=works, spin=False))
    for pause in (0, 0, 0.001, 0.01) * 5:
        time.sleep(pause)
        job()
    rounds, sleeps = pool.waits()
    assert rounds == 0
    assert sleeps > 0


def test_more_threads_than_allowed_cpus_never_spin() -> None:
    """Whatever the caller asks for, against the CPUs that this process may use."""
    pool.set_threads(len(CPUS) + 1)
    for _ in range(20):
        job()
        time.sleep(0.001)
    assert pool.waits()[0] == 0


def test_callers_meet_a_crew_that_works_alone(works: bool) -> None:
    native.set_threads(1)
    expected = job()
    pool.set_workers(rank(1, works=works))
    with ThreadPoolExecutor(3) as callers:
        assert all(found.equal(expected) for found in callers.map(lambda _: job(), range(30)))


def test_a_cpu_that_is_not_there() -> None:
    place = RankPlace(0, (0,), CPUS, CPUS, (CPUS, (4095,)), True, True)
    (warning,) = pool.set_workers(place)
    assert warning.startswith("workers 2 could not be bound")
    job()


@pytest.mark.parametrize("fault", ["leave", "vanish"])
def test_a_worker_that_dies_is_named(works: bool, fault: str) -> None:
    pool.set_workers(rank(2, works=works))
    said = strike(2, fault)
    cpu = CPUS[1 % len(CPUS)]
    assert said.startswith(f"worker 2 (CPU {cpu}) died in block ")
    assert "--threads or --bind off" in said
    with pytest.raises(LostWorkerError, match=r"worker 2 .* died"):  # until they are set again
        job()
    pool.set_workers(rank(2, works=works))
    job()


def test_all_workers_dead(works: bool) -> None:
    pool.set_workers(rank(2, works=works))
    pool.set_fault(1, "vanish")
    said = strike(2, "vanish")
    # A caller that works may be through before the second one comes.
    assert works or ("worker 1 " in said and "worker 2 " in said)


def test_a_worker_that_hangs_is_named(works: bool) -> None:
    pool.set_workers(rank(2, works=works))
    pool.set_patience(PATIENCE)
    started = time.monotonic()
    said = strike(1, "hang")
    assert time.monotonic() - started >= PATIENCE
    assert said.startswith(f"worker 1 (CPU {CPUS[0]}) does not move in block ")
    with pytest.raises(LostWorkerError, match="worker 1"):
        job()
    pool.set_patience(30)
    pool.set_fault(1, "throw")  # it wakes up, in a job that is long gone
    time.sleep(0.05)
    pool.set_workers(rank(2, works=works))
    job()


def test_what_a_body_throws_comes_out_and_nobody_is_lost(works: bool) -> None:
    pool.set_workers(rank(2, works=works))
    pool.set_fault(2, "throw")
    with pytest.raises(RuntimeError, match="a fault set by a test"):
        many()
    job()


def test_a_step_that_was_run_before_allocates_nothing() -> None:
    pool.set_workers(rank(2, works=True))
    for _ in range(200):
        job()
    before = pool.scratch_growths()
    for _ in range(50):
        job()
    assert pool.scratch_growths() == before


def test_a_process_ends_although_a_worker_hangs() -> None:
    script = (
        "import torch; from deskside.errors import LostWorkerError;"
        "from deskside.kernels import native, pool; native.set_threads(2);"
        "pool.set_patience(0.3); pool.set_fault(1, 'hang');"
        "from tests.ops.test_native_crew import many\n"
        "try: many()\n"
        "except LostWorkerError as lost: print(lost.exit_code, str(lost)[:8])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "4 worker 1\n", "")


STOPPED = """
import sys, threading, time
from deskside.kernels import native, pool
from tests.ops.test_native_crew import job

def wake():
    time.sleep(0.5)
    print("hung", flush=True)
    sys.stdin.readline()
    pool.set_fault(1, "throw")  # wakes it up, and is met at its next block

native.set_threads(2)
job()
pool.set_patience(4)
pool.set_fault(1, "hang")
thread = threading.Thread(target=wake)
thread.start()
try:
    while True:
        job()
except RuntimeError as met:
    print(met)
"""


@pytest.mark.slow
def test_a_process_that_was_stopped_for_a_while_is_not_hung() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "hung\n"
    child.send_signal(signal.SIGSTOP)
    time.sleep(6)
    child.send_signal(signal.SIGCONT)
    out, _ = child.communicate("go on\n", timeout=60)
    assert (out, child.returncode) == ("a fault set by a test\n", 0)
