"""The options of the engine: what it loads, where that runs, and how many it serves."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from deskside.config.option import check_choice, check_count, flag_of, told
from deskside.errors import InputError
from deskside.injection import injections

__all__ = ["Auto", "Backend", "EngineOptions", "Kernels", "KvFormat", "Numerics"]

Auto: TypeAlias = Literal["auto"]
KvFormat: TypeAlias = Literal["fp8", "float32"]
Backend: TypeAlias = Literal["auto", "resident", "hybrid", "cpu", "fetch"]
Kernels: TypeAlias = Literal["native", "plain"]
Numerics: TypeAlias = Literal["fast", "reference", "exact"]
Switch: TypeAlias = Literal["on", "off"]
LoadOrder: TypeAlias = Literal["parallel", "serial"]
Speculation: TypeAlias = Literal["auto", "off"]
PrefixCache: TypeAlias = Literal["auto", "off"]
FallbackRule: TypeAlias = Literal["fixed", "paying"]
WidthRule: TypeAlias = Literal["stop", "expect", "argmax", "biased-argmax"]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a checkpoint is loaded and run."""

    threads: int | Auto = field(
        default="auto",
        metadata=told(
            "Compute threads of a rank; auto takes its cores, less one for the coordinator and a "
            "few for the system where there are enough."
        ),
    )
    kv_tokens: int | Auto = field(
        default="auto",
        metadata=told(
            "Tokens of KV to allocate, prompts and outputs together; auto is the least of the "
            "model's limit, a quarter of free memory, and 65536."
        ),
    )
    kv_format: KvFormat = field(
        default="fp8",
        metadata=told("How KV is kept: fp8 as the model was made for, float32 for comparison."),
    )
    prefix_cache: int | PrefixCache = field(
        default="auto",
        metadata=told(
            "Host memory, in MiB, for snapshots at which a later prompt that begins alike is taken "
            "up; auto has room for one in 2048 tokens of KV; off computes every prompt whole."
        ),
    )
    numerics: Numerics = field(
        default="fast",
        metadata=told(
            "fast may compute prompt rows by a quicker path; exact uses one path for all rows; "
            "reference rounds activations to FP8 as the official inference does, slowly."
        ),
    )
    backend: Backend = field(
        default="auto",
        metadata=told(
            "Where routed experts run: cpu in place; resident, all on the device; fetch, missing "
            "ones are copied to it; hybrid, some are copied while the CPU computes the others. "
            "On a machine without a device auto is cpu."
        ),
    )
    fetch_fraction: float | Auto = field(
        default="auto",
        metadata=told(
            "Share of the missing experts that hybrid copies; auto takes what `deskside profile` "
            "measured."
        ),
    )
    expert_slots: int | Auto = field(
        default="auto",
        metadata=told("Experts of all layers that hybrid and fetch hold on the device."),
    )
    tp: int = field(
        default=1,
        metadata=told(
            "Processes that share the model, each with its slices of the weights: 1, 2, 4 or 8."
        ),
    )
    load_order: LoadOrder = field(
        default="parallel",
        metadata=told("Whether these processes read the checkpoint together or one by one."),
    )
    rendezvous_timeout: float = field(
        default=1800.0,
        metadata=told("Seconds in which all of them must have come and loaded."),
    )
    rank_timeout: float = field(
        default=120.0,
        metadata=told("Seconds after which one that does not answer in a step counts as lost."),
    )
    prefill_chunk: int = field(
        default=2048, metadata=told("Most prompt tokens of one request in one step.")
    )
    step_tokens: int = field(
        default=256,
        metadata=told(
            "Most rows in one step while other requests are waiting for their next token."
        ),
    )
    max_running: int = field(default=8, metadata=told("Most requests that run at the same time."))
    kernels: Kernels = field(
        default="native",
        metadata=told(
            "native uses the compiled kernels, plain the definitions they are tested against."
        ),
    )
    tier: str = field(
        default="auto",
        metadata=told(
            "Instruction set of the compiled kernels, as --version names it; auto takes the "
            "widest that the processor has."
        ),
    )
    bind: Switch = field(
        default="on", metadata=told("Tie each compute thread to a core of its own.")
    )
    huge_pages: Switch = field(
        default="on", metadata=told("Ask for huge pages for the banks of routed experts.")
    )

    speculation: int | Speculation = field(
        default="auto",
        metadata=told(
            "auto lets the checkpoint's drafter propose tokens where it has one, a number "
            "verifies that many proposals each step, off proposes none."
        ),
    )
    width_rule: WidthRule = field(
        default="stop",
        metadata=told(
            "How many proposals auto verifies. argmax refuses sampled requests, whose output it "
            "would bias; biased-argmax takes them."
        ),
    )
    measure_costs: bool = field(
        default=False,
        metadata=told(
            "Measure again what drafts and forwards cost; else the first start's numbers are used."
        ),
    )
    fallback: bool = field(
        default=True, metadata=told("Pause drafting for requests whose proposals fail.")
    )
    fallback_rule: FallbackRule = field(
        default="paying",
        metadata=told(
            "Pause by the share of accepted proposals alone, or only where it costs too."
        ),
    )
    fallback_threshold: float = field(
        default=0.60, metadata=told("Share of accepted proposals under which drafting pauses.")
    )
    fallback_min_drafted: int = field(
        default=32, metadata=told("Verified proposals after which that share is judged.")
    )
    fallback_steps: int = field(default=64, metadata=told("Steps that a pause lasts."))
    fallback_backoff: bool = field(
        default=False, metadata=told("Double the pause when a new try fails, up to 1024 steps.")
    )
    test_faults: tuple[str, ...] = field(
        default=(),
        metadata=told(
            "For tests: let faults happen, as SITE[@RANK]:ACT[:AFTER[:TIMES]]; later takes them "
            "while the service runs. Refused on an address that others can reach."
        ),
    )

    def __post_init__(self) -> None:
        """Refuse values that no machine could obey, naming the option."""
        check_choice("kv_format", self.kv_format, get_args(KvFormat))
        check_choice("numerics", self.numerics, get_args(Numerics))
        if self.numerics == "reference" and self.backend in ("hybrid", "fetch"):
            raise InputError(
                "--numerics reference adds floats, so that where an expert runs would show: "
                f"use --backend cpu or resident, not {self.backend}"
            )
        check_count("tp", self.tp)
        check_choice("load_order", self.load_order, get_args(LoadOrder))
        for name in ("rendezvous_timeout", "rank_timeout"):
            if not 0 < getattr(self, name) <= 86_400:
                raise InputError(
                    f"{flag_of(name)} must lie in (0, 86400] seconds, got {getattr(self, name)}"
                )
        check_choice("bind", self.bind, get_args(Switch))
        check_choice("huge_pages", self.huge_pages, get_args(Switch))
        check_choice("kernels", self.kernels, get_args(Kernels))
        check_choice("backend", self.backend, get_args(Backend))
        self._check_experts()
        check_choice("width_rule", self.width_rule, get_args(WidthRule))
        self._check_speculation()
        if self.threads != "auto":
            check_count("threads", self.threads)
        if self.kv_tokens != "auto":
            check_count("kv_tokens", self.kv_tokens)
        if self.prefix_cache not in get_args(PrefixCache):
            check_count("prefix_cache", self.prefix_cache)
        check_count("prefill_chunk", self.prefill_chunk)
        check_count("step_tokens", self.step_tokens)
        check_count("max_running", self.max_running)
        self._check_faults()

    def _check_faults(self) -> None:
        for text in self.test_faults:
            for one in injections((text,), rank=None):
                if one.rank is not None and one.rank >= self.tp:
                    raise InputError(f"--test-faults {text:.60}: --tp {self.tp} has no such rank")

    def _check_experts(self) -> None:
        fraction = self.fetch_fraction
        if fraction != "auto" and (isinstance(fraction, bool) or not 0 <= fraction <= 1):
            raise InputError(f"--fetch-fraction must be auto or lie in [0, 1], got {fraction}")
        if self.expert_slots != "auto":
            check_count("expert_slots", self.expert_slots)

    def _check_speculation(self) -> None:
        width = self.speculation
        if width not in get_args(Speculation) and (
            isinstance(width, bool) or not isinstance(width, int) or width < 0
        ):
            raise InputError(
                f"--speculation must be auto, off or a number of proposals, got {width!r:.60}"
            )
        check_choice("fallback_rule", self.fallback_rule, get_args(FallbackRule))
        if not 0 <= self.fallback_threshold <= 1:
            raise InputError(
                f"--fallback-threshold must lie in [0, 1], got {self.fallback_threshold}"
            )
        check_count("fallback_min_drafted", self.fallback_min_drafted)
        check_count("fallback_steps", self.fallback_steps)
