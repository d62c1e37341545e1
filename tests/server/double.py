"""An engine whose every token is known beforehand, for tests of what stands around it.

The target repeats its prompt: after `[first, a, b, c]` come a, b, c and the end token. Of a chat
prompt it repeats what the user said last. A first token out of `Act` lets something happen at the
output token whose number is the second token; the script then begins with the third. The drafter
proposes the same script, wrong at every place that `wrong` names. Everything else is the package's
own: planner, scheduler, engine, owners of state, tokenizer.

Run as a module it is a worker: `deskside serve` starts it in the place of its own.
"""

import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from deskside.batch import Batch
from deskside.config.engine import EngineOptions
from deskside.core import Constraint, Pause, RankLoad, Request, SequenceId, Span
from deskside.engine.engine import Engine
from deskside.engine.inputs import BatchBuilder
from deskside.engine.live import Live
from deskside.engine.owners import Owners
from deskside.engine.verify import Proposal
from deskside.injection import Probe, injections
from deskside.layout.folder import resolve
from deskside.machine.placement import place
from deskside.planning.plan import plan_folder
from deskside.runtime.build import Runtime
from deskside.runtime.worker import serve_order
from deskside.scheduler.admission import Admissions
from deskside.scheduler.scheduler import Scheduler, StepLimits
from deskside.speculate.stop import StopRule
from deskside.state.kv import KvState
from deskside.state.tokens import TokenStore
from deskside.text.guide import Guide, Guides
from deskside.text.tokenizer import Tokenizer

MODEL = "deskside-mini"
STEP_SECONDS = 0.02
TOKENIZER = Tokenizer.open(resolve(MODEL))
CONTROLS = TOKENIZER.controls
SLOWLY = TOKENIZER.encode_plain("slowly")
"""Begins what a user says so that each step of the answer takes a while."""
USER, ASSISTANT = CONTROLS["<｜User｜>"], CONTROLS["<｜Assistant｜>"]
LIKELY, SECOND = 10.0, 9.0
MOST_LEARNED = 1000
"""Spans that a drafter remembers; a service that runs for hours must not grow by them."""


class Act(IntEnum):
    """What happens, by the first token of a prompt."""

    NAN = CONTROLS["<｜latest_reminder｜>"]
    """The logits of that token are no numbers."""
    RAISE = CONTROLS["<｜action｜>"]
    """The forward raises."""
    KILL = CONTROLS["<｜query｜>"]
    """The process kills itself."""
    HANG = CONTROLS["<｜authority｜>"]
    """The forward does not come back."""
    LOOP = CONTROLS["<｜domain｜>"]
    """Nothing happens; the script begins again at its end, and each step takes a while."""
    SLOW = CONTROLS["<｜title｜>"]
    """Nothing happens; each step takes a while."""


@dataclass(frozen=True)
class Script:
    """What one prompt leads to."""

    tokens: tuple[int, ...]
    eos: int
    act: Act | None = None
    at: int = -1

    @staticmethod
    def of(prompt: Sequence[int], eos: int) -> "Script":
        if prompt[0] in list(Act) and len(prompt) > 2:
            return Script(tuple(prompt[2:]), eos, Act(prompt[0]), prompt[1])
        if USER in prompt:
            said = prompt[len(prompt) - 1 - prompt[::-1].index(USER) + 1 :]
            act = Act.SLOW if tuple(said[: len(SLOWLY)]) == SLOWLY else None
            return Script(tuple(said[: said.index(ASSISTANT)]), eos, act)
        return Script(tuple(prompt[1:]), eos)

    def token(self, index: int) -> int:
        """Return output token `index`."""
        if self.act is Act.LOOP:
            return self.tokens[index % len(self.tokens)]
        return self.tokens[index] if index < len(self.tokens) else self.eos


class PromptStore(TokenStore):
    """A token store that can say where a prompt ended."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: dict[SequenceId, tuple[int, ...]] = {}

    def admit(self, sequence: SequenceId, prompt: Sequence[int], frontier: int = 0) -> None:
        super().admit(sequence, prompt, frontier)
        self.prompts[sequence] = tuple(prompt)

    def release(self, sequence: SequenceId) -> None:
        super().release(sequence)
        self.prompts.pop(sequence, None)


@dataclass
class Target:
    """Stands where the model does: logits by script."""

    owners: Owners
    tokens: PromptStore
    vocab: int
    eos: int

    def forward(self, batch: Batch, state: KvState) -> Tensor:
        sequences = {slot: name for name, slot in self.owners.rings._slots.items()}
        owners = [sequences[slot] for slot in batch.slots.tolist()]
        scripts = {name: Script.of(self.tokens.prompts[name], self.eos) for name in owners}
        if any(script.act in (Act.LOOP, Act.SLOW) for script in scripts.values()):
            time.sleep(STEP_SECONDS)
        logits = torch.zeros(len(batch.logit_rows), self.vocab)
        for at, row in enumerate(batch.logit_rows.tolist()):
            name = owners[int(batch.span[row])]
            index = int(batch.positions[row]) + 1 - len(self.tokens.prompts[name])
            if index < 0:  # a row of a prompt that is scored
                logits[at, self.tokens.prompts[name][index]] = LIKELY
            else:
                self._write(logits[at], scripts[name], index)
        return logits

    def _write(self, logits: Tensor, script: Script, index: int) -> None:
        token = script.token(index)
        logits[token] = LIKELY
        logits[(token + 1) % self.vocab] = SECOND
        if index != script.at:
            return
        match script.act:
            case Act.NAN:
                logits[:] = torch.nan
            case Act.RAISE:
                raise MemoryError("scripted")
            case Act.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Act.HANG:
                time.sleep(3600)


Wrong = Callable[[int], bool]


@dataclass
class Drafter:
    """Proposes `width` tokens of the script; `wrong` says at which output tokens it errs."""

    width: int
    wrong: Wrong
    vocab: int
    eos: int
    steps: int = 0
    learned: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MOST_LEARNED))
    """Verified and accepted proposals of the last spans."""

    def drafting(self, spans: Sequence[Span], live: Mapping[SequenceId, Live]) -> list[Span]:
        return []

    def follow(self, drafting: Sequence[Span]) -> None:
        pass

    def propose(
        self, spans: Sequence[Span], drafting: Sequence[Span], live: Mapping[SequenceId, Live]
    ) -> list[Proposal]:
        return [self._propose(span, live[span.sequence]) for span in spans]

    def _propose(self, span: Span, live: Live) -> Proposal:
        prompt = live.request.prompt
        width = min(self.width, live.stop.left - 1)
        if span.start < len(prompt) or not span.samples or span.certain > 1 or width < 1:
            return Proposal.none()
        script = Script.of(prompt, self.eos)
        first = span.start + 1 - len(prompt)
        ids = tuple(
            (script.token(index) + 7 * self.wrong(index)) % self.vocab
            for index in range(first, first + width)
        )
        laws = torch.zeros(width, self.vocab, dtype=torch.float64)
        laws[range(width), ids] = 1.0
        return Proposal(ids, torch.tensor(ids), laws)

    def forward(self, model: Target, batch: Batch, state: KvState) -> Tensor:
        return model.forward(batch, state)

    def learn(self, span: Span, accepted: int) -> Pause | None:
        self.learned.append((span.proposals, accepted))
        return None

    def release(self, sequence: SequenceId) -> None:
        pass


GIVES_OUT = re.compile("(nowhere|error) behind ([0-9]+)")
"""In a grammar: what its library does behind so many tokens."""


@dataclass
class Failing:
    """A library's matcher that leads nowhere behind some tokens, or fails there."""

    inner: Any
    how: str
    left: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def try_consume_tokens(self, tokens: list[int]) -> int:
        taken: int = self.inner.try_consume_tokens(tokens)
        self.left -= taken
        return taken

    def rollback(self, count: int) -> bool:
        self.left += count
        return bool(self.inner.rollback(count))

    def compute_bitmask(self) -> bytes:
        bits: bytes = self.inner.compute_bitmask()
        return bits if self.left > 0 else bytes(len(bits))

    def is_error(self) -> bool:
        return self.how == "error" and self.left <= 0

    def get_error(self) -> str:
        return "scripted"


class FailingGuides(Guides):
    """Guides whose grammars say themselves that they give out."""

    def begin(self, constraint: Constraint) -> Guide:
        guide = super().begin(constraint)
        said = GIVES_OUT.search(constraint.grammar)
        if said:
            matcher = guide._matcher
            matcher._inner = Failing(matcher._inner, said[1], int(said[2]))  # type: ignore[assignment]
        return guide


def scripted(
    options: EngineOptions, width: int = 0, wrong: Wrong = lambda index: index % 7 == 6
) -> Runtime:
    """Return a runtime of the built-in model's shape that runs scripts."""
    probe = Probe(injections(options.test_faults))
    plan = plan_folder(MODEL, replace(options, speculation="off"))
    tokenizer = Tokenizer.open(resolve(MODEL))
    capacity, slots = plan.capacity, plan.max_running
    state = KvState.allocate(
        plan.spec, capacity.kv_format, plan.kv_pages, slots, borders=capacity.borders
    )
    tokens = PromptStore()
    owners = Owners.allocate(state, plan.kv_pages, slots, snapshots=capacity.snapshots, whole=True)
    owners = replace(owners, tokens=tokens)
    target = Target(owners, tokens, plan.spec.vocab, plan.spec.eos)
    guides = FailingGuides(tokenizer, plan.spec.vocab)
    return Runtime(
        plan=plan,
        placement=place(plan.machine.topology, threads=1),
        tokenizer=tokenizer,
        scheduler=Scheduler(
            Admissions(
                plan.kv_pages,
                plan.max_running,
                plan.spec.vocab,
                positions=plan.spec.max_positions,
            ),
            StepLimits(options.prefill_chunk, options.step_tokens, width),
            owners.prefixes.resumable,
        ),
        engine=Engine(
            target,  # type: ignore[arg-type]
            state,
            owners,
            BatchBuilder(plan.spec, owners.pages, owners.rings),
            _stop_rules(plan.spec.eos, tokenizer),
            Drafter(width, wrong, plan.spec.vocab, plan.spec.eos),  # type: ignore[arg-type]
            guides,
            probe=probe,
        ),
        guides=guides,
        state_bytes=state.nbytes,
        probe=probe,
    )


def _stop_rules(eos: int, tokenizer: Tokenizer) -> Callable[[Request], StopRule]:
    return lambda request: StopRule(request, eos, tokenizer.text_bytes)


def build(
    model: str, options: EngineOptions, progress: Callable[[Sequence[RankLoad]], None]
) -> Runtime:
    """Build for a worker; `--speculation N` is the drafter's width."""
    for done in range(1, 5):
        progress([RankLoad(0, (), done, 4)])
        time.sleep(0.15)
    width = options.speculation if isinstance(options.speculation, int) else 0
    return scripted(options, width)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(serve_order(build))
