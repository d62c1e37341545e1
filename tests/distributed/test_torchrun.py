"""Ranks that torchrun starts, as two machines would: two launchers, and an address of each."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deskside.config.environment import TorchrunPlace, torchrun_place
from deskside.errors import InputError

MASTER = "127.0.0.2"
"""Not the address that everything listens on by default."""
COMMAND = ["deskside", "run", "def f(x):", "--max-tokens", "6", "--quiet", "--numerics", "exact"]
COMMAND += ["--kv-tokens", "1024", "--speculation", "off"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((MASTER, 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.timeout(300)
def test_two_launchers_make_one_model(tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    launch += ["--nproc-per-node", "1", "--master-addr", MASTER, "--master-port", str(free_port())]
    ranks = [
        subprocess.Popen(
            [*launch, "--node-rank", str(node), "-m", *COMMAND, "--tp", "2"],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    (text, log), (nothing, other_log) = (rank.communicate(timeout=240) for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], log + other_log
    alone = [sys.executable, "-m", *COMMAND]
    expected = subprocess.run(alone, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    assert text == expected.stdout
    assert nothing == "", "only the leader speaks"


PLACE = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7",
}


def test_the_place_that_torchrun_gives() -> None:
    assert torchrun_place(PLACE) == TorchrunPlace(3, 4, 1, 2, "node7")
    assert torchrun_place({"RANK": "1", "WORLD_SIZE": "2"}) is None, "some other launcher's"
    with pytest.raises(InputError, match="LOCAL_RANK"):
        torchrun_place({name: value for name, value in PLACE.items() if name != "LOCAL_RANK"})
    with pytest.raises(InputError, match="not whole"):
        torchrun_place({**PLACE, "RANK": "x"})
