"""The options of `deskside serve`: where it listens, whom it lets in, and how long it waits."""

from dataclasses import dataclass, field
from pathlib import Path

from deskside.config.option import check_count, flag_of, told
from deskside.errors import InputError

__all__ = ["ServerOptions"]

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
class ServerOptions:
    """How `deskside serve` meets its clients. Times are in seconds, sizes in bytes."""

    host: str = field(default="127.0.0.1", metadata=told("Address to listen on."))
    port: int = field(default=8000, metadata=told("Port to listen on; 0 takes a free one."))
    api_key: str | None = field(
        default=None,
        metadata=told(
            "Key that every request must carry. Others on this machine can read a command line: "
            "prefer DESKSIDE_API_KEY or --api-key-file."
        ),
    )
    api_key_file: Path | None = field(
        default=None, metadata=told("File whose first line is that key.")
    )
    open_to_all: bool = field(
        default=False, metadata=told("Listen on a public address without a key.")
    )
    allowed_hosts: tuple[str, ...] = field(
        default=(),
        metadata=told("Further host names that clients may call the service by; repeatable."),
    )
    cors_origins: tuple[str, ...] = field(
        default=(),
        metadata=told("Origins whose web pages may call the service; none by default."),
    )
    served_model_name: str | None = field(
        default=None, metadata=told("Name of the model in requests; by default that of its folder.")
    )
    any_model_name: bool = field(
        default=False, metadata=told("Take every model name in a request for the one that is here.")
    )
    default_max_tokens: int = field(
        default=4096,
        metadata=told("Most tokens of a chat answer that sets no limit, where so many fit."),
    )
    thinking_budget: int | None = field(
        default=None,
        metadata=told(
            "Tokens behind which a thought is closed so that an answer follows, where the request "
            "does not say; of a limit that leaves less room, half. By default no thought is closed."
        ),
    )
    repetition_guard: int = field(
        default=0,
        metadata=told(
            "Close a thought whose end is one piece so many times in a row; 0 never looks."
        ),
    )
    max_queue: int = field(
        default=64, metadata=told("Most sequences that wait; further ones are answered with 429.")
    )
    max_body: int = field(default=16 * 2**20, metadata=told("Largest body of a request, in bytes."))
    receive_timeout: float = field(
        default=30.0, metadata=told("Seconds in which a client must send headers, then a body.")
    )
    send_timeout: float = field(
        default=60.0, metadata=told("Seconds after which a client that reads nothing is dropped.")
    )
    keep_alive: float = field(
        default=10.0,
        metadata=told("Seconds of silence after which a stream carries a comment line."),
    )
    drain_timeout: float = field(
        default=30.0, metadata=told("Seconds that running requests have to end after SIGTERM.")
    )
    load_timeout: float = field(
        default=3600.0,
        metadata=told("Seconds that the engine has to become ready; then the start has failed."),
    )
    watchdog: float = field(
        default=120.0,
        metadata=told("Seconds without a word from the engine after which it counts as hung."),
    )
    status_every: float = field(
        default=10.0, metadata=told("Seconds between two status lines while the service is busy.")
    )

    def __post_init__(self) -> None:
        """Refuse values that no service could obey, naming the option."""
        if not 0 <= self.port < 65536:
            raise InputError(f"--port must lie in [0, 65535], got {self.port}")
        for name in ("default_max_tokens", "max_queue", "max_body"):
            check_count(name, getattr(self, name))
        if self.thinking_budget is not None:
            check_count("thinking_budget", self.thinking_budget)
        if self.repetition_guard != 0 and not 2 <= self.repetition_guard <= 1000:
            raise InputError(
                f"--repetition-guard must be 0 or lie in [2, 1000], got {self.repetition_guard}"
            )
        for name in _SECONDS:
            if not 0 < getattr(self, name) <= 86_400:
                raise InputError(
                    f"{flag_of(name)} must lie in (0, 86400] seconds, got {getattr(self, name)}"
                )
        if self.api_key is not None and self.api_key_file is not None:
            raise InputError("the key is given twice: use one of --api-key and --api-key-file")
