"""The options of single commands: which model, how text is drawn, which service, how to behave."""

from dataclasses import dataclass, field
from pathlib import Path

from deskside.config.option import told
from deskside.core import SamplingParams

__all__ = ["ClientOptions", "ModelOptions", "ProcessOptions", "SamplingOptions"]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which checkpoint."""

    model: str = field(
        default="deskside-mini",
        metadata=told("Folder in the 0731 layout, or the name of a checkpoint that ships."),
    )


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are drawn by `deskside run`."""

    temperature: float = field(
        default=0.0, metadata=told("0 takes the likeliest token; higher draws more freely.")
    )
    top_p: float = field(
        default=1.0,
        metadata=told("Draw from the likeliest tokens that hold this much probability."),
    )
    top_k: int = field(default=0, metadata=told("Draw from this many likeliest tokens; 0 is all."))
    seed: int | None = field(
        default=None, metadata=told("Makes drawing repeatable; without it one is chosen.")
    )
    max_tokens: int = field(default=256, metadata=told("Most tokens to generate."))
    stop: tuple[str, ...] = field(
        default=(),
        metadata=told("Text at which to stop, not shown itself; may be given several times."),
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
class ClientOptions:
    """Where `chat`, `status` and others find a service."""

    server: str = field(
        default="http://127.0.0.1:8000", metadata=told("Where the service answers.")
    )
    api_key: str | None = field(
        default=None, metadata=told("Its key; prefer DESKSIDE_API_KEY or --api-key-file.")
    )
    api_key_file: Path | None = field(
        default=None, metadata=told("File whose first line is that key.")
    )


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How the command itself behaves; not read from the file."""

    config: Path | None = field(
        default=None, metadata=told("TOML file with options, such as: kv-tokens = 8192")
    )
    debug: bool = field(default=False, metadata=told("Show the traceback of an internal fault."))
    verbose: bool = field(
        default=False, metadata=told("Show what is chosen, measured and paused on the way.")
    )
