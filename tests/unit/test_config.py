"""Options: defaults, refusals, and what the environment and a file may say."""

from dataclasses import fields
from pathlib import Path

import pytest

from deskside.config.commands import ModelOptions, ProcessOptions, SamplingOptions
from deskside.config.engine import EngineOptions
from deskside.config.environment import from_environment, notify_socket, wants_traceback
from deskside.config.file import read_file
from deskside.config.server import ServerOptions
from deskside.core import SamplingParams
from deskside.errors import InputError


def test_defaults() -> None:
    assert ModelOptions().model == "deskside-mini"
    assert EngineOptions() == EngineOptions(
        threads="auto",
        kv_tokens="auto",
        kv_format="fp8",
        numerics="fast",
        prefill_chunk=2048,
        step_tokens=256,
        max_running=8,
        kernels="native",
        backend="auto",
        fetch_fraction="auto",
        expert_slots="auto",
    )
    assert SamplingOptions().params() == SamplingParams(
        temperature=0.0, top_p=1.0, top_k=0, max_tokens=256, seed=None, stop=()
    )


@pytest.mark.parametrize(
    "record", [ModelOptions, EngineOptions, SamplingOptions, ServerOptions, ProcessOptions]
)
def test_every_option_has_a_doc(record: type) -> None:
    for option in fields(record):
        assert option.metadata["help"].endswith((".", "8192")), option.name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"threads": 0}, "--threads must be a whole number from 1, got 0"),
        ({"threads": True}, "--threads must be a whole number from 1, got True"),
        ({"kv_tokens": -5}, "--kv-tokens must be a whole number from 1, got -5"),
        ({"prefill_chunk": 0}, "--prefill-chunk must be"),
        ({"step_tokens": 1.5}, "--step-tokens must be"),
        ({"max_running": 0}, "--max-running must be"),
        ({"kv_format": "int4"}, "--kv-format must be one of fp8, float32, got 'int4'"),
        ({"backend": "gpu"}, "--backend must be one of auto, resident, hybrid, cpu, fetch, got"),
        ({"fetch_fraction": 1.5}, r"--fetch-fraction must be auto or lie in \[0, 1\], got 1.5"),
        ({"fetch_fraction": float("nan")}, "--fetch-fraction must be auto or lie in"),
        ({"expert_slots": 0}, "--expert-slots must be a whole number from 1, got 0"),
        ({"kernels": ""}, "--kernels must be one of native, plain, got ''"),
        ({"numerics": "quick"}, "--numerics must be one of fast, reference, exact, got 'quick'"),
        (
            {"numerics": "reference", "backend": "hybrid"},
            "--numerics reference adds floats, .*: use --backend cpu or resident, not hybrid",
        ),
    ],
)
def test_bad_values_name_the_option(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EngineOptions(**values)


def test_sampling_is_checked_when_it_is_used() -> None:
    with pytest.raises(InputError, match="temperature must lie in"):
        SamplingOptions(temperature=float("nan")).params()
    with pytest.raises(InputError, match="max-tokens must be at least 1"):
        SamplingOptions(max_tokens=0).params()


def test_environment() -> None:
    environ = {
        "DESKSIDE_KV_TOKENS": "8192",
        "DESKSIDE_MODEL": "",
        "DESKSIDE_DEBUG": "1",
        "DESKSIDE_ELSE": "x",
        "THREADS": "3",
    }
    assert from_environment(environ) == {
        "DESKSIDE_KV_TOKENS": {"kv-tokens": "8192"},
        "DESKSIDE_DEBUG": {"debug": "1"},
    }


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "options.toml"
    path.write_text('kv-tokens = 8192\nmodel = "m"\ntemperature = 0.5\nstop = ["a", "b"]\n')
    assert read_file(path) == {
        "kv-tokens": "8192",
        "model": "m",
        "temperature": "0.5",
        "stop": ["a", "b"],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"kv-tokens = ", "is not TOML"),
        (b"\xff", "is not TOML"),
        (b"tokens = 4", "'tokens' is none of model, threads, kv-tokens"),
        (b"config = 'x'", "'config' is none of"),
        (b"threads = true", "threads must be a number or text, got True"),
        (b"[threads]\nn = 1", "threads must be a number or text, got {'n': 1}"),
        (b"stop = [1]", "stop must be text, or a list of texts, got [1]"),
    ],
)
def test_bad_files(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "options.toml"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        read_file(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_file(tmp_path / "none.toml")


def test_traceback_is_asked_for_by_flag_or_variable() -> None:
    assert wants_traceback(["run", "--debug"], {})
    assert wants_traceback([], {"DESKSIDE_DEBUG": "1"})
    assert not wants_traceback(["run"], {"DESKSIDE_DEBUG": "0"})
    assert not wants_traceback(["run"], {})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": -1}, r"--port must lie in \[0, 65535\], got -1"),
        ({"port": 65_536}, "--port must lie in"),
        ({"max_queue": 0}, "--max-queue must be a whole number from 1"),
        ({"max_body": True}, "--max-body must be"),
        ({"watchdog": 0.0}, "--watchdog must lie in"),
        ({"drain_timeout": float("nan")}, "--drain-timeout must lie in"),
        ({"send_timeout": float("inf")}, "--send-timeout must lie in"),
    ],
)
def test_bad_server_values_name_the_option(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ServerOptions(**values)  # type: ignore[arg-type]


def test_the_service_managers_socket_is_read_here_alone() -> None:
    assert notify_socket({}) is None
    assert notify_socket({"NOTIFY_SOCKET": ""}) is None
    assert notify_socket({"NOTIFY_SOCKET": "/run/x"}) == "/run/x"
