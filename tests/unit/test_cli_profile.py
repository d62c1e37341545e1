"""`deskside profile` with numbers from a record: its lines, its JSON, its refusals."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deskside.cli import main
from deskside.config.engine import EngineOptions
from deskside.errors import ProfileError
from deskside.machine.fingerprint import Fingerprint
from tests.unit.planning.test_experts import RATES

FOUND = SimpleNamespace(
    path=Path("/cache/one.json"),
    fingerprint=Fingerprint("Some CPU", "0-3", 4, "avx512vnni"),
    rates=RATES,
    predicted={"cpu": 1.234, "hybrid": 2.0},
)


@dataclass
class Service:
    fault: Exception | None = None
    asked: tuple[Any, ...] = ()

    def profile(self, *asked: Any) -> Any:
        self.asked = asked
        if self.fault:
            raise self.fault
        return FOUND


def call(service: Service, *words: str) -> int:
    return main(["profile", *words], service)  # type: ignore[arg-type]


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    service = Service()
    assert call(service, "--threads", "4") == 0
    assert service.asked == ("deskside-mini", EngineOptions(threads=4), 1.0)
    assert capsys.readouterr().out.splitlines() == [
        "machine    Some CPU: 4 threads on CPUs 0-3, avx512vnni kernels; device cpu, driver none",
        "experts    12.75 MiB each, out of 953.67 MiB",
        "read       16.00 GB/s with 1, 32.00 GB/s with 2 threads",
        "alone      in place 24.00 GB/s, fetch 12.00 GB/s, in slots 96.00 GB/s",
        "together   in place 18.00 GB/s, fetch 7.00 GB/s",
        "q*         0.280 of the missing experts are to be fetched",
        "predicted  cpu 1.2, hybrid 2.0 tok/s without speculation, by memory traffic alone",
        "kept in    /cache/one.json",
    ]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(Service(), "--json", "--seconds", "0.5") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rates"] == json.loads(RATES.model_dump_json())
    assert told["fetch_fraction"] == 0.28
    assert told["fingerprint"]["cpus"] == "0-3"
    assert told["predicted_tokens_per_s"] == FOUND.predicted


@pytest.mark.parametrize("seconds", ["0", "-1", "601", "nan"])
def test_seconds_that_cannot_be(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    service = Service()
    assert call(service, "--seconds", seconds) == 2
    assert "--seconds must lie in (0, 600]" in capsys.readouterr().err
    assert service.asked == ()


def test_a_fault_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(Service(ProfileError("/c: cannot be written"))) == 2
    assert capsys.readouterr().err == "deskside: error: /c: cannot be written\n"
