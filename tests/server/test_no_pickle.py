"""Nothing that the processes of a service say to each other is pickled: each of them is watched."""

from pathlib import Path

from tests.server.rig import serving
from tests.server.test_ranks import FIELDS

WATCH = """
import os
import pickle
import sys

FILE = os.environ["WATCHED"]


def say(what):
    with open(FILE, "a") as file:
        file.write(f"{what}\\n")


def watched(name):
    inner = getattr(pickle, name)

    def call(*args, **options):
        say(name)
        return inner(*args, **options)

    return call


def heard(event, args):
    if event == "pickle.find_class":
        say(event)


say(f"process {os.getpid()}")
for name in ("dump", "dumps", "load", "loads"):
    setattr(pickle, name, watched(name))
sys.addaudithook(heard)
if os.environ.get("PICKLES"):
    pickle.loads(pickle.dumps(list))
"""


def watch(folder: Path, **environ: str) -> dict[str, str]:
    """Let each Python process under these variables say when it pickles, in a file."""
    (folder / "sitecustomize.py").write_text(WATCH)
    return {"PYTHONPATH": str(folder), "WATCHED": str(folder / "said"), **environ}


def test_processes_do_not_pickle(tmp_path: Path) -> None:
    options = ("--tp", "2", "--threads", "1", "--kv-tokens", "4096", "--speculation", "3")
    with serving(*options, scripted=False, environ=watch(tmp_path)) as server:
        assert server.complete(**FIELDS | {"max_tokens": 20})["choices"][0]["text"]
        said = (tmp_path / "said").read_text().splitlines()
        ours = {f"process {server.process.pid}", f"process {server.worker()}"}
        assert ours <= set(said), said
        assert len({line for line in said if line.startswith("process ")}) >= 3  # and a rank
        assert [line for line in said if not line.startswith("process ")] == []


def test_a_process_that_pickles_is_heard(tmp_path: Path) -> None:
    """The test above could fail."""
    with serving("--kv-tokens", "4096", environ=watch(tmp_path, PICKLES="1")):
        said = (tmp_path / "said").read_text().splitlines()
    assert {"dumps", "loads", "pickle.find_class"} <= set(said)
