"""The whole speculative loop, enumerated with exact fractions over every draw it could make.

A world is a tiny target and drafter whose laws depend on the text so far. A branch of the loop
carries the text, the controller and the running averages; what comes out is the exact law of the
first tokens. The width rules and the controller are the real ones; acceptance is its formula.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from deskside.speculate.fallback import Controller, FallbackSettings
from deskside.speculate.width import Averages

Text = tuple[int, ...]
Law = Sequence[Fraction]
Rule = Callable[[Sequence[Fraction], Sequence[Fraction]], int]
"""From confidences and running averages to a width."""


@dataclass(frozen=True)
class World:
    """Two laws and the drafter's confidence, all functions of the text."""

    target: Callable[[Text], Law]
    drafter: Callable[[Text], Law]
    confidence: Callable[[Text], Fraction]
    """Of the proposal that follows a text."""
    block: int

    def truth(self, length: int) -> dict[Text, Fraction]:
        """Return the law of the first tokens when the target alone draws them."""
        laws = {(): Fraction(1)}
        for _ in range(length):
            laws = {
                (*text, token): chance * part
                for text, chance in laws.items()
                for token, part in enumerate(self.target(text))
                if part
            }
        return laws

    def drafts(self, text: Text) -> Iterator[tuple[Text, list[Fraction], Fraction]]:
        """Yield every block that can be proposed, its confidences and its chance."""
        blocks: list[tuple[Text, list[Fraction], Fraction]] = [((), [], Fraction(1))]
        for _ in range(self.block):
            blocks = [
                ((*ids, token), [*known, self.confidence(text + ids)], chance * part)
                for ids, known, chance in blocks
                for token, part in enumerate(self.drafter(text + ids))
                if part
            ]
        yield from blocks

    def verified(self, text: Text, ids: Text) -> Iterator[tuple[int, Text, Fraction]]:
        """Yield accepted count, emitted tokens and chance for a block that is verified."""
        chance = Fraction(1)
        for count, token in enumerate(ids):
            p, q = self.target(text + ids[:count]), self.drafter(text + ids[:count])
            kept = min(Fraction(1), p[token] / q[token])
            residual = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
            for other, part in enumerate(residual):
                if part and kept < 1:
                    share = part / sum(residual)
                    yield count, (*ids[:count], other), chance * (1 - kept) * share
            chance *= kept
        for token, part in enumerate(self.target(text + ids)):
            if part and chance:
                yield len(ids), (*ids, token), chance * part


@dataclass
class Branch:
    """One course of the loop so far."""

    text: Text
    averages: Averages
    controller: Controller = field(default_factory=lambda: Controller(OFF))

    def key(self) -> tuple[object, ...]:
        """Name everything that the future depends on."""
        state = vars(self.controller).values()
        return (
            self.text,
            *(v for v in state if not isinstance(v, FallbackSettings)),
            str(self.averages),
        )


OFF = FallbackSettings(threshold=0.0)
FREE = (Fraction(1),) * 9


def step(
    world: World, rule: Rule, branch: Branch, costs: Sequence[Fraction]
) -> Iterator[tuple[Branch, Fraction]]:
    """Yield every branch that one step can lead to, with its chance."""
    if not branch.controller.speculates:
        for _, tokens, chance in world.verified(branch.text, ()):
            controller = copy.copy(branch.controller)
            controller.observe()
            yield Branch(branch.text + tokens, branch.averages, controller), chance
        return
    for ids, confidences, drafted in world.drafts(branch.text):
        width = rule(confidences, branch.averages.values())
        averages = copy.deepcopy(branch.averages)
        averages.observe(confidences)
        for accepted, tokens, chance in world.verified(branch.text, ids[:width]):
            controller = copy.copy(branch.controller)
            controller.observe(accepted, width, costs[width])
            yield Branch(branch.text + tokens, averages, controller), drafted * chance


def emitted(
    world: World,
    rule: Rule,
    length: int,
    settings: FallbackSettings = OFF,
    costs: Sequence[Fraction] = FREE,
) -> dict[Text, Fraction]:
    """Return the exact law of the first `length` tokens that the loop emits.

    `costs` are what the controller is told of a step of every width, in target-only steps.
    """
    start = Branch((), Averages(world.block, Fraction(3, 4)), Controller(settings))
    open_branches = {start.key(): (start, Fraction(1))}
    law: dict[Text, Fraction] = defaultdict(Fraction)
    while open_branches:
        following: dict[tuple[object, ...], tuple[Branch, Fraction]] = {}
        for branch, chance in open_branches.values():
            for after, part in step(world, rule, branch, costs):
                if len(after.text) >= length:
                    law[after.text[:length]] += chance * part
                    continue
                key = after.key()
                known = following[key][1] if key in following else 0
                following[key] = (after, known + chance * part)
        open_branches = following
    return dict(law)
