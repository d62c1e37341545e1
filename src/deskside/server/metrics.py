"""Counters and gauges for Prometheus, under our own names and under those that vLLM uses.

Owns the names. Numbers come from the engine's steps and from the ends of requests.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from deskside.core import Emission
from deskside.wire.messages import Gauges, Ready, Step

__all__ = ["Ended", "Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 200_000, 1_000_000)
WIDTHS = tuple(range(9))

ALIASES = {
    "deskside_requests_running": "vllm:num_requests_running",
    "deskside_requests_waiting": "vllm:num_requests_waiting",
    "deskside_kv_usage_ratio": "vllm:kv_cache_usage_perc",
    "deskside_prompt_tokens": "vllm:prompt_tokens",
    "deskside_prefix_queries": "vllm:prefix_cache_queries",
    "deskside_prefix_hits": "vllm:prefix_cache_hits",
    "deskside_generation_tokens": "vllm:generation_tokens",
    "deskside_requests_finished": "vllm:request_success",
    "deskside_request_prompt_tokens": "vllm:request_prompt_tokens",
    "deskside_request_generation_tokens": "vllm:request_generation_tokens",
    "deskside_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "deskside_inter_token_seconds": "vllm:inter_token_latency_seconds",
    "deskside_request_seconds": "vllm:e2e_request_latency_seconds",
    "deskside_decode_seconds": "vllm:request_decode_time_seconds",
    "deskside_draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "deskside_accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
}
"""Our names, and those under which dashboards for vLLM look for the same numbers."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence that is over."""

    reason: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    first_token: float | None
    cached_tokens: int = 0


class _Aliases(Collector):
    """The families of another registry under second names."""

    def __init__(self, own: CollectorRegistry) -> None:
        self._own = own

    def collect(self) -> Iterable[Metric]:
        """Yield the aliased families."""
        for family in self._own.collect():
            alias = ALIASES.get(family.name)
            if alias is not None:
                yield _renamed(family, alias)


class Metrics:
    """The numbers of one service."""

    def __init__(self, model: str) -> None:
        self._own = CollectorRegistry()
        self._aliases = CollectorRegistry()
        self._aliases.register(_Aliases(self._own))
        self._model = model
        self._pages = 0
        self._last_token: float | None = None
        self._running = self._gauge("requests_running", "Requests that run.")
        self._waiting = self._gauge("requests_waiting", "Requests that wait.")
        self._usage = self._gauge("kv_usage_ratio", "Share of KV pages that are held.")
        self._free = self._gauge("kv_free_pages", "KV pages that nobody holds.")
        self._cached = self._gauge("kv_cached_pages", "Free KV pages that a prompt may find.")
        self._snapshots = self._gauge("prefix_snapshots", "Places where a prompt may go on.")
        self._queries = self._counter("prefix_queries", "Prompt tokens that were looked up.")
        self._hits = self._counter("prefix_hits", "Prompt tokens that were computed before.")
        self._age = self._gauge("last_token_age_seconds", "Seconds since the last token.")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of requests that ended.")
        self._generated = self._counter("generation_tokens", "Tokens that were emitted.")
        self._drafted = self._counter("draft_tokens", "Proposals that were verified.")
        self._accepted = self._counter("accepted_tokens", "Proposals that stayed.")
        self._finished = self._counter("requests_finished", "Ended sequences.", "finished_reason")
        self._answers = self._counter(
            "http_answers", "Answers by route and status.", "path", "code"
        )
        self._prompts = self._histogram("request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self._outputs = self._histogram("request_generation_tokens", "Tokens of an output.", TOKENS)
        self._ttft = self._histogram("time_to_first_token_seconds", "To the first token.", SECONDS)
        self._gap = self._histogram("inter_token_seconds", "Between two tokens.", SECONDS)
        self._whole = self._histogram("request_seconds", "From arrival to end.", SECONDS)
        self._decode = self._histogram("decode_seconds", "From first to last token.", SECONDS)
        self._step = self._histogram("step_seconds", "Of a step of the engine.", SECONDS)
        self._rows = self._histogram("step_rows", "Rows of a step.", TOKENS)
        self._width = self._histogram("verify_width", "Proposals verified in a step.", WIDTHS)

    def ready(self, facts: Ready) -> None:
        """Take the engine's numbers."""
        self._pages = facts.kv_pages
        self.stand(facts.gauges)

    def stand(self, gauges: Gauges) -> None:
        """Show how the engine stands."""
        self._running.set(gauges.running)
        self._waiting.set(gauges.waiting)
        self._free.set(gauges.free_pages)
        self._cached.set(gauges.cached_pages)
        self._snapshots.set(gauges.snapshots)
        if self._pages:
            self._usage.set(1 - gauges.free_pages / self._pages)

    def stepped(self, step: Step) -> None:
        """Count a step."""
        self.stand(step.gauges)
        self._step.observe(step.seconds)
        self._rows.observe(step.rows)
        for emission in step.emissions.values():
            self._emitted(emission)

    def ended(self, sequence: Ended) -> None:
        """Count a sequence that is over."""
        self._finished.labels(self._model, sequence.reason).inc()
        self._prompt.labels(self._model).inc(sequence.prompt_tokens)
        self._queries.labels(self._model).inc(sequence.prompt_tokens)
        self._hits.labels(self._model).inc(sequence.cached_tokens)
        self._prompts.observe(sequence.prompt_tokens)
        self._outputs.observe(sequence.completion_tokens)
        self._whole.observe(sequence.seconds)
        if sequence.first_token is not None:
            self._ttft.observe(sequence.first_token)
            decode = sequence.seconds - sequence.first_token
            self._decode.observe(decode)
            if sequence.completion_tokens > 1:
                self._gap.observe(decode / (sequence.completion_tokens - 1))

    def answered(self, path: str, status: int) -> None:
        """Count an answer; paths that are no route of ours share one name."""
        known = path if path in ROUTES else "other"
        self._answers.labels(self._model, known, str(status)).inc()

    def page(self) -> bytes:
        """Return everything in Prometheus' text form."""
        if self._last_token is not None:
            self._age.set(time.monotonic() - self._last_token)
        return generate_latest(self._own) + generate_latest(self._aliases)

    def _emitted(self, emission: Emission) -> None:
        if emission.tokens:
            self._last_token = time.monotonic()
            self._generated.labels(self._model).inc(len(emission.tokens))
            self._width.observe(emission.verified)
        if emission.verified:
            self._drafted.labels(self._model).inc(emission.verified)
            self._accepted.labels(self._model).inc(emission.accepted)

    def _gauge(self, name: str, said: str) -> Any:
        made = Gauge(f"deskside_{name}", said, ["model_name"], registry=self._own)
        return made.labels(self._model)

    def _counter(self, name: str, said: str, *labels: str) -> Counter:
        names = ["model_name", *labels]
        return Counter(f"deskside_{name}", said, names, registry=self._own)

    def _histogram(self, name: str, said: str, buckets: tuple[float, ...]) -> Any:
        made = Histogram(
            f"deskside_{name}", said, ["model_name"], registry=self._own, buckets=buckets
        )
        return made.labels(self._model)


ROUTES = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/v1/responses",
        "/tokenize",
        "/detokenize",
        "/render",
        "/health",
        "/health/live",
        "/health/ready",
        "/metrics",
        "/version",
        "/admin/requests",
        "/admin/placement",
    }
)


def _renamed(family: Metric, name: str) -> Metric:
    copy = Metric(name, family.documentation, family.type, family.unit)
    copy.samples = list(_samples(family, name))
    return copy


def _samples(family: Metric, name: str) -> Iterator[Any]:
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            yield sample._replace(name=name + sample.name.removeprefix(family.name))
