"""Ten minutes of everything at once leave nothing: no page, slot, file, thread, no memory."""

import random
import threading
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.server.double import Act
from tests.server.rig import Server, serving

SECONDS = 600.0
PROBE = {"prompt": [0, *range(300, 340)], "max_tokens": 30, "temperature": 0.5, "seed": 7}


def _held(process: int) -> tuple[int, int, float]:
    """Return open files, threads and resident MiB of a process."""
    folder = Path(f"/proc/{process}")
    status = dict(
        line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
    )
    files = len(list((folder / "fd").iterdir()))
    return files, int(status["Threads"]), int(status["VmRSS"].split()[0]) / 1024


def _client(server: Server, seed: int, until: float, faults: list[str]) -> None:
    draw = random.Random(seed)
    while time.monotonic() < until:
        kind = draw.random()
        fields = {
            "prompt": [Act.LOOP if kind < 0.3 else 0, 0, *draw.choices(range(300, 900), k=20)],
            "max_tokens": draw.randint(1, 60),
            "temperature": draw.choice([0, 1.0]),
            "n": draw.choice([1, 1, 3]),
            "stream": draw.random() < 0.7,
            "stop": draw.choice([None, "e", " the"]),
            "logprobs": draw.choice([None, None, 2]),
            "echo": draw.random() < 0.2,
        }
        if kind > 0.95:
            fields["prompt"][0] = Act.NAN
        try:
            with httpx.stream(
                "POST", server.url + "/v1/completions", json=fields, timeout=60
            ) as answer:
                if answer.status_code not in (200, 429, 500):
                    faults.append(answer.read().decode())
                for _ in answer.iter_lines():
                    if draw.random() < 0.03:
                        break  # leaves in the midst
        except httpx.HTTPError as error:
            faults.append(repr(error))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_minutes_leave_nothing_behind() -> None:
    with serving("--kv-tokens", "16384", "--max-running", "8", "--speculation", "3") as server:
        processes = (server.process.pid, server.worker())
        want = server.complete(**PROBE)["choices"][0]["text"]
        free = server.wait_idle()
        faults: list[str] = []
        _round(server, 30.0, faults)  # warms up: caches, pools, first allocations
        before = [_held(process) for process in processes]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            _round(server, 60.0, faults)
            assert server.complete(**PROBE)["choices"][0]["text"] == want
            left = server.wait_idle()
            assert (left["free_pages"], left["free_slots"]) == (
                free["free_pages"],
                free["free_slots"],
            )
        assert faults == []
        time.sleep(1)
        after = [_held(process) for process in processes]
        for (files, threads, memory), (now_files, now_threads, now_memory) in zip(
            before, after, strict=True
        ):
            assert abs(now_files - files) <= 3
            assert abs(now_threads - threads) <= 3
            assert now_memory - memory < 20


def _round(server: Server, seconds: float, faults: list[str]) -> None:
    until = time.monotonic() + seconds
    clients = [
        threading.Thread(target=_client, args=(server, seed, until, faults)) for seed in range(3)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    server.wait_idle()
