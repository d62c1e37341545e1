"""The engine as the HTTP process sees it, with a wire and nobody behind it."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from deskside.core import Request, SamplingParams
from deskside.injection import Injection, Probe, Site, injections
from deskside.server.engine import RemoteEngine
from deskside.server.faults import Fault
from deskside.server.metrics import Metrics
from deskside.wire.messages import Abort, Gauges, Ready, Submit
from deskside.wire.sockets import WorkerEnd

PARAMS = SamplingParams(max_tokens=5)
ONE, OTHER = (1, 2, 3), (1, 2, 4)
CHOICES = 3
FACTS = Ready(
    kv_tokens=1024,
    kv_pages=8,
    max_running=4,
    max_positions=2048,
    vocab=100,
    greedy_only=False,
    speculates=False,
    gauges=Gauges(),
)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[RemoteEngine, WorkerEnd]]:
    worker = SimpleNamespace(commands=f"ipc://{tmp_path}/c", events=f"ipc://{tmp_path}/e")
    engine = RemoteEngine(worker, 8, 120.0, Metrics("m"))  # type: ignore[arg-type]
    engine._become_ready(FACTS)
    with WorkerEnd(worker.commands, worker.events) as end:
        while not end.receive(0.01):  # what is said before they have met is lost
            engine.arm([])
        while end.receive(0.05):
            pass
        yield engine, end
        engine.close()


def requests() -> list[Request]:
    return [Request(prompt, PARAMS, n) for prompt in (ONE, OTHER) for n in range(CHOICES)]


def test_a_prompt_crosses_the_wire_once(ends: tuple[RemoteEngine, WorkerEnd]) -> None:
    engine, end = ends
    ticket = engine.submit("r", requests(), "prompt")
    first, *rest = end.receive(5)
    rest = rest or end.receive(5)
    assert [first, *rest] == [
        Submit(keys=list(ticket.keys[:CHOICES]), request=Request(ONE, PARAMS)),
        Submit(keys=list(ticket.keys[CHOICES:]), request=Request(OTHER, PARAMS)),
    ]
    assert len(engine.tickets) == 2 * CHOICES


def test_what_could_not_be_queued_whole_is_not_queued(
    ends: tuple[RemoteEngine, WorkerEnd],
) -> None:
    engine, end = ends
    engine.probe = Probe([_third(Site.QUEUE)])
    with pytest.raises(MemoryError):
        engine.submit("r", requests(), "prompt")
    assert [type(command) for command in end.receive(5)] == [Abort]
    assert not engine.tickets


def _third(site: Site) -> Injection:
    (made,) = injections((f"{site.name.lower()}:memory:2:1",))
    return made


@pytest.mark.parametrize("wrong", [(), (1, 100), (1, -1), (1,) * 1020])
def test_no_choice_is_queued_of_what_can_never_run(
    ends: tuple[RemoteEngine, WorkerEnd], wrong: tuple[int, ...]
) -> None:
    engine, end = ends
    asked = [Request(ONE, PARAMS), Request(wrong, PARAMS), Request(wrong, PARAMS, 1)]
    with pytest.raises(Fault) as refused:
        engine.submit("r", asked, "prompt")
    assert (refused.value.status, refused.value.param) == (400, "prompt")
    assert not engine.tickets
    assert end.receive(0.05) == []
