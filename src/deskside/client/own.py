"""A service of one's own, for as long as a chat lasts."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from deskside.client.peer import Peer
from deskside.errors import DesksideError

__all__ = ["started"]

LISTENING = "listening on "
SECONDS = 30.0
"""That a service has to end."""


@contextmanager
def started(words: Sequence[str], key: str | None) -> Iterator[Peer]:
    """Start `deskside serve` on a free port with further words; yield it when it is ready.

    It does not hear the terminal's Ctrl-C, and ends when this is left.

    Raises:
        DesksideError: it ended before it was ready; its own lines say why.
    """
    command = [sys.executable, "-m", "deskside", "serve", "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(
        [*command, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        assert process.stdout is not None
        lines: list[str] = []
        url = ""
        for line in process.stderr:
            lines.append(line)
            if LISTENING in line:
                url = line.partition(LISTENING)[2].strip()
                break
        threading.Thread(target=_drop, args=(process.stderr, lines), daemon=True).start()
        if not process.stdout.readline():
            process.wait()
            told = " ".join(lines[-1:]).strip() or f"exit code {process.returncode}"
            raise DesksideError(f"the service did not start: {told}")
        yield Peer(url, key)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _drop(stream: Iterator[str], last: list[str]) -> None:
    """Read on, so that the service never waits for a reader; keep the last line."""
    for line in stream:
        last[:] = [line]
