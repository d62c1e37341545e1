"""The worker pool: many callers, sleeping workers, a clean end. Results never depend on it."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from deskside.kernels import native

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("_native_defaults")]


def test_callers_on_several_threads_all_get_their_result():
    native.set_threads(2)
    weight = torch.randn(256, 256)
    inputs = [torch.randn(9, 256) for _ in range(24)]
    expected = [native.linear(x, weight) for x in inputs]
    with ThreadPoolExecutor(4) as callers:
        for _ in range(20):
            results = callers.map(native.linear, inputs, [weight] * len(inputs))
            assert all(map(torch.equal, results, expected))


@pytest.mark.parametrize("threads", [2, 5])
def test_workers_that_fell_asleep_come_back(threads):
    native.set_threads(threads)
    weight, x = torch.randn(512, 256), torch.randn(4, 256)
    expected = native.linear(x, weight)
    for pause in (0, 0.001, 0.02, 0, 0.005):
        time.sleep(pause)
        for _ in range(50):
            assert native.linear(x, weight).equal(expected)


def test_the_thread_count_changes_between_calls():
    weight, x = torch.randn(512, 256), torch.randn(4, 256)
    expected = native.linear(x, weight)
    for threads in (1, 3, 2, 4, 1):
        native.set_threads(threads)
        assert native.threads() == threads
        assert native.linear(x, weight).equal(expected)


def test_a_process_with_workers_ends_cleanly():
    script = (
        "import torch; from deskside.kernels import native; native.set_threads(3);"
        "native.linear(torch.randn(4, 256), torch.randn(512, 256)); print('done')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
