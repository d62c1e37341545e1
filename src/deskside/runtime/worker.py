"""The engine's process: takes requests from the wire, runs steps, sends what they brought.

Owns the loop of one rank and the names of requests on the wire. It decides nothing about HTTP and
knows no text. Torch loads only after the process is tied to its parent, so that a parent that dies
early leaves nothing behind.
"""

import contextlib
import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from deskside.config.engine import EngineOptions
from deskside.core import RankLoad, Request, SamplingParams, SequenceId, StepOutput
from deskside.errors import ContextLengthError, DesksideError, InputError
from deskside.injection import Site
from deskside.machine.binding import bind
from deskside.runtime.parentage import die_with
from deskside.wire.messages import (
    Abort,
    Accepted,
    Alive,
    Arm,
    Command,
    Failed,
    Gauges,
    Order,
    Progress,
    Ready,
    Refused,
    Step,
    Stop,
    Submit,
)
from deskside.wire.sockets import WorkerEnd

if TYPE_CHECKING:
    from deskside.runtime.build import Runtime
    from deskside.text.guide import Guide

__all__ = ["Builder", "Leader", "serve_order"]

Listener = Callable[[Sequence[RankLoad]], None]
"""Hears how far the load of every rank is."""

Builder = Callable[[str, EngineOptions, Listener], "Runtime"]
"""From a model's name, options and a listener to the load, to a runtime."""

log = logging.getLogger("deskside.machine")

COMPILING = 0.002
"""Seconds between looks at a grammar that is compiled while nothing else runs."""
HEARTBEAT = 0.5
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
PROGRESS_EVERY = 0.2


@dataclass(slots=True)
class Leader:
    """The loop of plan, step and learn, between two sockets."""

    runtime: "Runtime"
    wire: WorkerEnd
    _keys: dict[SequenceId, str] = field(default_factory=dict)
    _sequences: dict[str, SequenceId] = field(default_factory=dict)
    _preparing: dict[str, tuple[Request, "Future[Guide]"]] = field(default_factory=dict)
    """Requests whose grammar is compiled, by key."""
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _stopping: bool = False
    _step: int = 0

    def warm_up(self) -> None:
        """Let one token come all the way through, as a request's does."""
        bos = self.runtime.tokenizer.bos
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        self.runtime.scheduler.submit(Request((bos,), params))
        while not self.runtime.scheduler.idle:
            self._run_step()

    def run(self) -> None:
        """Serve until told to stop."""
        self.wire.send(self._ready())
        while not self._stopping:
            idle = self.runtime.scheduler.idle
            patience = COMPILING if self._preparing else HEARTBEAT
            for command in self.wire.receive(patience if idle else 0):
                self._obey(command)
            self._submit_prepared()
            if not self.runtime.scheduler.idle:
                self._send_step()
            elif idle:
                self.runtime.ensemble.check()
                self.wire.send(Alive(gauges=self._gauges()))

    def _obey(self, command: Command) -> None:
        match command:
            case Submit(keys=keys, request=request):
                for place, key in enumerate(keys):
                    self._take(key, replace(request, choice=request.choice + place))
            case Abort():
                for key in command.keys:
                    self._abort(key)
            case Arm():
                self.runtime.probe.arm(command.injections)
            case Stop():
                self._stopping = True

    def _take(self, key: str, request: Request) -> None:
        """Queue a sequence, or have its grammar compiled first."""
        if request.params.constraint is None:
            self._submit(key, request)
        else:
            begun = self._threads.submit(self.runtime.guides.begin, request.params.constraint)
            self._preparing[key] = request, begun

    def _submit(self, key: str, request: Request) -> None:
        try:
            self.runtime.probe.at(Site.SUBMIT)
            sequence, seed = self.runtime.scheduler.submit(request)
        except (MemoryError, RuntimeError) as error:
            told = f"{type(error).__name__}: {error}"
            self.wire.send(Refused(key=key, code="engine_fault", message=told))
            return
        except InputError as error:
            long = isinstance(error, ContextLengthError)
            code = "context_length_exceeded" if long else "invalid_request"
            self.wire.send(Refused(key=key, code=code, message=str(error)))
            return
        self._keys[sequence] = key
        self._sequences[key] = sequence
        self.wire.send(Accepted(key=key, seed=seed))

    def _submit_prepared(self) -> None:
        """Queue what waited for its grammar; no step waits for one."""
        ready = [key for key, (_, begun) in self._preparing.items() if begun.done()]
        for key in ready:
            request, begun = self._preparing.pop(key)
            fault = begun.exception()
            if fault is None:
                self._submit(key, request)
            else:
                told = f"response_format: {fault}"
                self.wire.send(Refused(key=key, code="invalid_request", message=told))

    def _abort(self, key: str) -> None:
        self._preparing.pop(key, None)
        sequence = self._sequences.pop(key, None)
        if sequence is not None:
            del self._keys[sequence]
            self.runtime.scheduler.abort(sequence)

    def _run_step(self) -> tuple[StepOutput, int]:
        plan = self.runtime.scheduler.plan_step()
        self._step = plan.step
        output = self.runtime.engine.step(plan)
        self.runtime.scheduler.learn(output)
        return output, sum(span.rows for span in plan.spans)

    def _send_step(self) -> None:
        started = time.perf_counter()
        output, rows = self._run_step()
        emissions = {}
        for sequence, emission in output.emissions.items():
            key = self._keys[sequence]
            emissions[key] = emission
            if emission.finish is not None:
                del self._keys[sequence], self._sequences[key]
        seconds = time.perf_counter() - started
        self.runtime.probe.at(Site.EVENT)
        self.wire.send(Step(emissions=emissions, gauges=self._gauges(), rows=rows, seconds=seconds))

    def _gauges(self) -> Gauges:
        pages, slots = self.runtime.engine.free
        cached, snapshots = self.runtime.engine.kept
        return Gauges(
            running=self.runtime.scheduler.running,
            waiting=self.runtime.scheduler.waiting,
            free_pages=pages,
            free_slots=slots,
            cached_pages=cached,
            snapshots=snapshots,
            step=self._step,
        )

    def _ready(self) -> Ready:
        plan = self.runtime.plan
        return Ready(
            kv_tokens=plan.kv_tokens,
            kv_pages=plan.kv_pages,
            max_running=plan.max_running,
            max_positions=plan.spec.max_positions,
            vocab=plan.spec.vocab,
            greedy_only=self.runtime.scheduler.greedy_only,
            speculates=plan.options.drafter and plan.spec.drafter is not None,
            gauges=self._gauges(),
            ranks=self.runtime.reports,
        )


def _package_build() -> Builder:
    from deskside.runtime.build import build  # loads torch

    def built(model: str, options: EngineOptions, progress: Listener) -> "Runtime":
        runtime = build(model, options, progress)
        refused = bind(runtime.placement.ranks[0].coordinator)  # this thread steps
        if refused is not None:
            log.warning("the coordinator %s", refused)
        return runtime

    return built


def _progress(wire: WorkerEnd) -> Listener:
    """Return a listener that reports bytes read, not more than a few times a second."""
    last = -PROGRESS_EVERY

    def report(loads: Sequence[RankLoad]) -> None:
        nonlocal last
        done, total = sum(one.done for one in loads), sum(one.total for one in loads)
        now = time.monotonic()
        if now - last >= PROGRESS_EVERY or done == total:
            last = now
            wire.send(Progress(phase="weights", done=done, total=total, loads=tuple(loads)))

    return report


def serve_order(build: Builder | None = None) -> int:
    """Read an order from standard input, load, serve, and return the exit code.

    Args:
        build: makes the runtime; by default the package's own.
    """
    order = Order.model_validate_json(sys.stdin.buffer.readline())
    die_with(order.parent)
    logging.basicConfig(format=LOG_FORMAT, level=logging.WARNING)
    with WorkerEnd(order.commands, order.events) as wire:
        try:
            wire.send(Progress(phase="starting"))
            runtime = (build or _package_build())(order.model, order.options, _progress(wire))
            with contextlib.closing(runtime):
                wire.send(Progress(phase="warm-up"))
                leader = Leader(runtime, wire)
                leader.warm_up()
                leader.run()
        except DesksideError as error:
            wire.send(Failed(exit_code=error.exit_code, message=str(error)))
            return error.exit_code
        except Exception as fault:  # the top of this process
            traceback.print_exc()
            told = f"internal fault in the engine: {type(fault).__name__}: {fault}"
            wire.send(Failed(exit_code=1, message=" ".join(told.split())))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(serve_order())
