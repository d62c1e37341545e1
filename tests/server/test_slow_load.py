"""What a service shows of a load that takes its time, for every rank."""

import os
import pty
import re
import select
import subprocess
import sys
import time

from tests.server.rig import ROOT

COMMAND = [sys.executable, "-m", "tests.server.slow_load", "serve", "--port", "0"]
SECONDS = 60.0


def test_a_line_every_five_seconds_tells_bytes_rate_and_ranks() -> None:
    done = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if "deskside: loading" in line]
    shown = r"loading [\d.]+ GiB of [\d.]+ GiB, [\d.]+ GiB/s, \d+ s left"
    assert re.search(shown + r"; rank 0 \(node 0\) \d+ %, rank 1 \(node 1\) \d+ %$", line), line
    assert done.stderr.splitlines()[-1].startswith("deskside: error: ")
    assert "test's own" in done.stderr.splitlines()[-1]


def test_a_terminal_has_a_bar_for_every_rank_that_goes_away() -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(
        COMMAND, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=theirs, env=environ
    )
    os.close(theirs)
    try:
        shown = _until(ours, r"rank 1 \(node 1\).*/26\.0 GiB.*/s")
        assert re.search(r"rank 0 \(node 0\).*/26\.0 GiB.*/s", shown), shown
        process.terminate()
        assert process.wait(SECONDS) == 143
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _until(wire: int, pattern: str) -> str:
    """Read a terminal up to a pattern."""
    shown, end = "", time.monotonic() + SECONDS
    while time.monotonic() < end and not re.search(pattern, shown):
        if select.select([wire], [], [], 0.2)[0]:
            shown += os.read(wire, 65536).decode(errors="replace")
    assert re.search(pattern, shown), shown
    return shown
