"""Every option, defined once: its name, default, choices and doc.

The command line, DESKSIDE_* variables and the `--config` file are all read from these records, and
nothing changes them afterwards. This is the only module that reads the environment. It knows no
parser: a field's name gives the flag (`kv_tokens`: `--kv-tokens`), the variable
(`DESKSIDE_KV_TOKENS`) and the key in the file (`kv-tokens`).
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

from deskside.core import SamplingParams
from deskside.errors import InputError
from deskside.injection import injections

__all__ = [
    "Auto",
    "Backend",
    "ClientOptions",
    "EngineOptions",
    "Kernels",
    "KvFormat",
    "ModelOptions",
    "Numerics",
    "ProcessOptions",
    "SamplingOptions",
    "ServerOptions",
    "TorchrunPlace",
    "from_environment",
    "notify_socket",
    "option_fields",
    "profile_folder",
    "read_file",
    "torchrun_place",
    "wants_traceback",
]

PREFIX = "DESKSIDE_"

Auto: TypeAlias = Literal["auto"]
KvFormat: TypeAlias = Literal["fp8", "float32"]
Backend: TypeAlias = Literal["auto", "resident", "hybrid", "cpu", "fetch"]
Kernels: TypeAlias = Literal["native", "plain"]
Numerics: TypeAlias = Literal["fast", "reference", "exact"]
Switch: TypeAlias = Literal["on", "off"]
LoadOrder: TypeAlias = Literal["parallel", "serial"]
Speculation: TypeAlias = Literal["auto", "off"]
FallbackRule: TypeAlias = Literal["fixed", "paying"]
WidthRule: TypeAlias = Literal["stop", "expect", "argmax", "biased-argmax"]
Values: TypeAlias = Mapping[str, str | list[str]]
"""Values as they are spelled outside, by flag name without the dashes."""


def _doc(text: str) -> Mapping[str, str]:
    return {"help": text}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which checkpoint."""

    model: str = field(
        default="deskside-mini",
        metadata=_doc("Folder in the 0731 layout, or the name of a checkpoint that ships."),
    )


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a checkpoint is loaded and run."""

    threads: int | Auto = field(
        default="auto",
        metadata=_doc(
            "Compute threads of a rank; auto takes its cores, less one for the coordinator and a "
            "few for the system where there are enough."
        ),
    )
    kv_tokens: int | Auto = field(
        default="auto",
        metadata=_doc(
            "Tokens of KV to allocate, prompts and outputs together; auto is the least of the "
            "model's limit, a quarter of free memory, and 65536."
        ),
    )
    kv_format: KvFormat = field(
        default="fp8",
        metadata=_doc("How KV is kept: fp8 as the model was made for, float32 for comparison."),
    )
    numerics: Numerics = field(
        default="fast",
        metadata=_doc(
            "fast may compute prompt rows by a quicker path; exact uses one path for all rows; "
            "reference rounds activations to FP8 as the official inference does, slowly."
        ),
    )
    backend: Backend = field(
        default="auto",
        metadata=_doc(
            "Where routed experts run: cpu in place; resident, all on the device; fetch, missing "
            "ones are copied to it; hybrid, some are copied while the CPU computes the others. "
            "On a machine without a device auto is cpu."
        ),
    )
    fetch_fraction: float | Auto = field(
        default="auto",
        metadata=_doc(
            "Share of the missing experts that hybrid copies; auto takes what `deskside profile` "
            "measured."
        ),
    )
    expert_slots: int | Auto = field(
        default="auto",
        metadata=_doc("Experts of all layers that hybrid and fetch hold on the device."),
    )
    tp: int = field(
        default=1,
        metadata=_doc(
            "Processes that share the model, each with its slices of the weights: 1, 2, 4 or 8."
        ),
    )
    load_order: LoadOrder = field(
        default="parallel",
        metadata=_doc("Whether these processes read the checkpoint together or one by one."),
    )
    rendezvous_timeout: float = field(
        default=1800.0,
        metadata=_doc("Seconds in which all of them must have come and loaded."),
    )
    rank_timeout: float = field(
        default=120.0,
        metadata=_doc("Seconds after which one that does not answer in a step counts as lost."),
    )
    prefill_chunk: int = field(
        default=2048, metadata=_doc("Most prompt tokens of one request in one step.")
    )
    step_tokens: int = field(
        default=256,
        metadata=_doc(
            "Most rows in one step while other requests are waiting for their next token."
        ),
    )
    max_running: int = field(default=8, metadata=_doc("Most requests that run at the same time."))
    kernels: Kernels = field(
        default="native",
        metadata=_doc(
            "native uses the compiled kernels, plain the definitions they are tested against."
        ),
    )
    tier: str = field(
        default="auto",
        metadata=_doc(
            "Instruction set of the compiled kernels, as --version names it; auto takes the "
            "widest that the processor has."
        ),
    )
    bind: Switch = field(
        default="on", metadata=_doc("Tie each compute thread to a core of its own.")
    )
    huge_pages: Switch = field(
        default="on", metadata=_doc("Ask for huge pages for the banks of routed experts.")
    )

    speculation: int | Speculation = field(
        default="auto",
        metadata=_doc(
            "auto lets the checkpoint's drafter propose tokens where it has one, a number "
            "verifies that many proposals each step, off proposes none."
        ),
    )
    width_rule: WidthRule = field(
        default="stop",
        metadata=_doc(
            "How many proposals auto verifies. argmax refuses sampled requests, whose output it "
            "would bias; biased-argmax takes them."
        ),
    )
    measure_costs: bool = field(
        default=False,
        metadata=_doc(
            "Measure again what drafts and forwards cost; else the first start's numbers are used."
        ),
    )
    fallback: bool = field(
        default=True, metadata=_doc("Pause drafting for requests whose proposals fail.")
    )
    fallback_rule: FallbackRule = field(
        default="paying",
        metadata=_doc(
            "Pause by the share of accepted proposals alone, or only where it costs too."
        ),
    )
    fallback_threshold: float = field(
        default=0.60, metadata=_doc("Share of accepted proposals under which drafting pauses.")
    )
    fallback_min_drafted: int = field(
        default=32, metadata=_doc("Verified proposals after which that share is judged.")
    )
    fallback_steps: int = field(default=64, metadata=_doc("Steps that a pause lasts."))
    fallback_backoff: bool = field(
        default=False, metadata=_doc("Double the pause when a new try fails, up to 1024 steps.")
    )
    test_faults: tuple[str, ...] = field(
        default=(),
        metadata=_doc(
            "For tests: let faults happen, as SITE:ACT[:AFTER[:TIMES]]; later takes them while the "
            "service runs. Refused on an address that others can reach."
        ),
    )

    def __post_init__(self) -> None:
        """Refuse values that no machine could obey, naming the option."""
        _check_choice("kv_format", self.kv_format, get_args(KvFormat))
        _check_choice("numerics", self.numerics, get_args(Numerics))
        if self.numerics == "reference" and self.backend in ("hybrid", "fetch"):
            raise InputError(
                "--numerics reference adds floats, so that where an expert runs would show: "
                f"use --backend cpu or resident, not {self.backend}"
            )
        _check_count("tp", self.tp)
        _check_choice("load_order", self.load_order, get_args(LoadOrder))
        for name in ("rendezvous_timeout", "rank_timeout"):
            if not 0 < getattr(self, name) <= 86_400:
                raise InputError(
                    f"{_flag(name)} must lie in (0, 86400] seconds, got {getattr(self, name)}"
                )
        _check_choice("bind", self.bind, get_args(Switch))
        _check_choice("huge_pages", self.huge_pages, get_args(Switch))
        _check_choice("kernels", self.kernels, get_args(Kernels))
        _check_choice("backend", self.backend, get_args(Backend))
        self._check_experts()
        _check_choice("width_rule", self.width_rule, get_args(WidthRule))
        self._check_speculation()
        if self.threads != "auto":
            _check_count("threads", self.threads)
        if self.kv_tokens != "auto":
            _check_count("kv_tokens", self.kv_tokens)
        _check_count("prefill_chunk", self.prefill_chunk)
        _check_count("step_tokens", self.step_tokens)
        _check_count("max_running", self.max_running)
        injections(self.test_faults)

    def _check_experts(self) -> None:
        fraction = self.fetch_fraction
        if fraction != "auto" and (isinstance(fraction, bool) or not 0 <= fraction <= 1):
            raise InputError(f"--fetch-fraction must be auto or lie in [0, 1], got {fraction}")
        if self.expert_slots != "auto":
            _check_count("expert_slots", self.expert_slots)

    def _check_speculation(self) -> None:
        width = self.speculation
        if width not in get_args(Speculation) and (
            isinstance(width, bool) or not isinstance(width, int) or width < 0
        ):
            raise InputError(
                f"--speculation must be auto, off or a number of proposals, got {width!r:.60}"
            )
        _check_choice("fallback_rule", self.fallback_rule, get_args(FallbackRule))
        if not 0 <= self.fallback_threshold <= 1:
            raise InputError(
                f"--fallback-threshold must lie in [0, 1], got {self.fallback_threshold}"
            )
        _check_count("fallback_min_drafted", self.fallback_min_drafted)
        _check_count("fallback_steps", self.fallback_steps)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are drawn by `deskside run`."""

    temperature: float = field(
        default=0.0, metadata=_doc("0 takes the likeliest token; higher draws more freely.")
    )
    top_p: float = field(
        default=1.0,
        metadata=_doc("Draw from the likeliest tokens that hold this much probability."),
    )
    top_k: int = field(default=0, metadata=_doc("Draw from this many likeliest tokens; 0 is all."))
    seed: int | None = field(
        default=None, metadata=_doc("Makes drawing repeatable; without it one is chosen.")
    )
    max_tokens: int = field(default=256, metadata=_doc("Most tokens to generate."))
    stop: tuple[str, ...] = field(
        default=(),
        metadata=_doc("Text at which to stop, not shown itself; may be given several times."),
    )

    def params(self) -> SamplingParams:
        """Return the checked parameters of a request.

        Raises:
            InputError: a value lies outside its range; the message names the option.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
            seed=self.seed,
            stop=self.stop,
        )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How `deskside serve` meets its clients. Times are in seconds, sizes in bytes."""

    host: str = field(default="127.0.0.1", metadata=_doc("Address to listen on."))
    port: int = field(default=8000, metadata=_doc("Port to listen on; 0 takes a free one."))
    api_key: str | None = field(
        default=None,
        metadata=_doc(
            "Key that every request must carry. Others on this machine can read a command line: "
            "prefer DESKSIDE_API_KEY or --api-key-file."
        ),
    )
    api_key_file: Path | None = field(
        default=None, metadata=_doc("File whose first line is that key.")
    )
    open_to_all: bool = field(
        default=False, metadata=_doc("Listen on a public address without a key.")
    )
    allowed_hosts: tuple[str, ...] = field(
        default=(),
        metadata=_doc("Further host names that clients may call the service by; repeatable."),
    )
    cors_origins: tuple[str, ...] = field(
        default=(),
        metadata=_doc("Origins whose web pages may call the service; none by default."),
    )
    served_model_name: str | None = field(
        default=None, metadata=_doc("Name of the model in requests; by default that of its folder.")
    )
    any_model_name: bool = field(
        default=False, metadata=_doc("Take every model name in a request for the one that is here.")
    )
    default_max_tokens: int = field(
        default=4096,
        metadata=_doc("Most tokens of a chat answer that sets no limit, where so many fit."),
    )
    thinking_budget: int | None = field(
        default=None,
        metadata=_doc(
            "Tokens behind which a thought is closed so that an answer follows, where the request "
            "does not say; of a limit that leaves less room, half. By default no thought is closed."
        ),
    )
    repetition_guard: int = field(
        default=0,
        metadata=_doc(
            "Close a thought whose end is one piece so many times in a row; 0 never looks."
        ),
    )
    max_queue: int = field(
        default=64, metadata=_doc("Most sequences that wait; further ones are answered with 429.")
    )
    max_body: int = field(default=16 * 2**20, metadata=_doc("Largest body of a request, in bytes."))
    receive_timeout: float = field(
        default=30.0, metadata=_doc("Seconds in which a client must send headers, then a body.")
    )
    send_timeout: float = field(
        default=60.0, metadata=_doc("Seconds after which a client that reads nothing is dropped.")
    )
    keep_alive: float = field(
        default=10.0,
        metadata=_doc("Seconds of silence after which a stream carries a comment line."),
    )
    drain_timeout: float = field(
        default=30.0, metadata=_doc("Seconds that running requests have to end after SIGTERM.")
    )
    load_timeout: float = field(
        default=3600.0,
        metadata=_doc("Seconds that the engine has to become ready; then the start has failed."),
    )
    watchdog: float = field(
        default=120.0,
        metadata=_doc("Seconds without a word from the engine after which it counts as hung."),
    )
    status_every: float = field(
        default=10.0, metadata=_doc("Seconds between two status lines while the service is busy.")
    )

    def __post_init__(self) -> None:
        """Refuse values that no service could obey, naming the option."""
        if not 0 <= self.port < 65536:
            raise InputError(f"--port must lie in [0, 65535], got {self.port}")
        for name in ("default_max_tokens", "max_queue", "max_body"):
            _check_count(name, getattr(self, name))
        if self.thinking_budget is not None:
            _check_count("thinking_budget", self.thinking_budget)
        if self.repetition_guard != 0 and not 2 <= self.repetition_guard <= 1000:
            raise InputError(
                f"--repetition-guard must be 0 or lie in [2, 1000], got {self.repetition_guard}"
            )
        for name in _SECONDS:
            if not 0 < getattr(self, name) <= 86_400:
                raise InputError(
                    f"{_flag(name)} must lie in (0, 86400] seconds, got {getattr(self, name)}"
                )
        if self.api_key is not None and self.api_key_file is not None:
            raise InputError("the key is given twice: use one of --api-key and --api-key-file")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Where `chat`, `status` and others find a service."""

    server: str = field(
        default="http://127.0.0.1:8000", metadata=_doc("Where the service answers.")
    )
    api_key: str | None = field(
        default=None, metadata=_doc("Its key; prefer DESKSIDE_API_KEY or --api-key-file.")
    )
    api_key_file: Path | None = field(
        default=None, metadata=_doc("File whose first line is that key.")
    )


_SECONDS = (
    "receive_timeout",
    "send_timeout",
    "keep_alive",
    "drain_timeout",
    "load_timeout",
    "watchdog",
    "status_every",
)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How the command itself behaves; not read from the file."""

    config: Path | None = field(
        default=None, metadata=_doc("TOML file with options, such as: kv-tokens = 8192")
    )
    debug: bool = field(default=False, metadata=_doc("Show the traceback of an internal fault."))
    verbose: bool = field(
        default=False, metadata=_doc("Show what is chosen, measured and paused on the way.")
    )


FILE_RECORDS = (ModelOptions, EngineOptions, SamplingOptions, ServerOptions, ClientOptions)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        needs = f"{_flag(name)} must be one of {', '.join(choices)}, got {value!r:.60}"
        raise InputError(needs)


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{_flag(name)} must be a whole number from 1, got {value!r:.60}")


def _key(option: Field[Any]) -> str:
    return option.name.replace("_", "-")


def _options(records: Iterable[type]) -> list[Field[Any]]:
    return [option for record in records for option in fields(record)]


def option_fields() -> list[Field[Any]]:
    """Return every option that a file may hold, each name once."""
    return list({option.name: option for option in _options(FILE_RECORDS)}.values())


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Values]:
    """Return the options set by DESKSIDE_* variables, by variable; empty ones count as unset."""
    environ = os.environ if environ is None else environ
    found: dict[str, Values] = {}
    for option in _options((*FILE_RECORDS, ProcessOptions)):
        variable = PREFIX + option.name.upper()
        if environ.get(variable):
            found[variable] = {_key(option): environ[variable]}
    return found


def read_file(path: Path) -> Values:
    """Read the options of a TOML file.

    Raises:
        InputError: it cannot be read, is not TOML, or holds a key that is no option.
    """
    import tomllib  # only where a file is named: `--help` must answer at once

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--config {path}: is not TOML ({error!s:.80})") from error
    known = {_key(option): option for option in option_fields()}
    for key in table:
        if key not in known:
            raise InputError(f"--config {path}: {key!r:.60} is none of {', '.join(known)}")
    return {key: _spelled(path, known[key], value) for key, value in table.items()}


def _spelled(path: Path, option: Field[Any], value: object) -> str | list[str]:
    """Return a value as a flag spells it, if its kind is the option's."""
    if option.type is bool:
        if isinstance(value, bool):
            return str(value).lower()
        kind = "true or false"
    elif get_origin(option.type) is tuple:
        if isinstance(value, str):
            return [value]
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        kind = "text, or a list of texts"
    else:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return str(value)
        kind = "a number or text"
    raise InputError(f"--config {path}: {_key(option)} must be {kind}, got {value!r:.60}")


def profile_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder that keeps what was measured: below XDG_CACHE_HOME, or below ~/.cache.

    A relative XDG_CACHE_HOME counts as unset, as its specification wants.
    """
    environ = os.environ if environ is None else environ
    cache = Path(environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path(environ.get("HOME") or Path.home()) / ".cache"
    return cache / "deskside" / "profiles"


def wants_traceback(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> bool:
    """Whether an internal fault is to be shown whole, known before anything is parsed."""
    environ = os.environ if environ is None else environ
    return "--debug" in arguments or environ.get(PREFIX + "DEBUG", "") not in ("", "0", "false")


@dataclass(frozen=True, slots=True)
class TorchrunPlace:
    """Who torchrun says this process is: in all, and on this machine."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    master: str
    """Address of the machine of rank 0."""


def torchrun_place(environ: Mapping[str, str] | None = None) -> TorchrunPlace | None:
    """Return who this process is where torchrun started it, else None.

    Raises:
        InputError: its variables are not numbers.
    """
    environ = os.environ if environ is None else environ
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    try:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        rank, ranks, local_rank, local_ranks = (int(environ[name]) for name in names)
        return TorchrunPlace(rank, ranks, local_rank, local_ranks, environ["MASTER_ADDR"])
    except (KeyError, ValueError) as error:
        raise InputError(f"torchrun's variables are not whole ({error})") from error


def notify_socket(environ: Mapping[str, str] | None = None) -> str | None:
    """Return where a service manager wants to hear that the service is ready."""
    environ = os.environ if environ is None else environ
    return environ.get("NOTIFY_SOCKET") or None
