"""Sampled output under speculation follows the target's law exactly; a rule that looks ahead fails.

All numbers are fractions and all courses are enumerated, so equality is equality.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from deskside.core import SamplingParams
from deskside.speculate.acceptance import BlockUniforms, accept
from deskside.speculate.fallback import Controller, FallbackSettings
from deskside.speculate.policy import Policy
from deskside.speculate.width import SpeedBudget, argmax, expect, stop
from tests.exactness.loops import OFF, Law, Rule, Text, World, emitted

F = Fraction
COSTS = [F(10), F(31, 2), F(16), F(19)]
TRIGGER_HAPPY = FallbackSettings(threshold=0.6, min_drafted=2, steps=1)
PAYING = FallbackSettings(threshold=0.9, min_drafted=1, steps=1, paying=True)
"""At a threshold that would trip nearly always, so that the costs decide."""


def mixed(numbers: list[int]) -> list[Fraction]:
    return [F(number, sum(numbers)) for number in numbers]


def last(text: Text) -> int:
    return text[-1] if text else 0


def target(text: Text) -> Law:
    return mixed([1 + 2 * last(text), 2 + len(text) % 2, 3 - last(text)])


def drafter(text: Text) -> Law:
    return mixed([3, 1 + last(text), 2 + len(text) % 3])


def confidence(text: Text) -> Fraction:
    """Depends strongly on the token before: what a rule that looks ahead would fall for."""
    return [F(1, 2), F(19, 20), F(1, 10)][last(text)]


WORLD = World(target, drafter, confidence, block=2)

RULES: dict[str, Rule] = {
    "stop": lambda known, usual: stop(known, COSTS),
    "expect": lambda known, usual: expect(known, usual, COSTS),
    "fixed 0": lambda known, usual: 0,
    "fixed 1": lambda known, usual: 1,
    "fixed 2": lambda known, usual: 2,
}


@pytest.mark.parametrize("settings", [OFF, TRIGGER_HAPPY], ids=["always", "controller"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_loop_emits_the_targets_law(rule: Rule, settings: FallbackSettings) -> None:
    assert emitted(WORLD, rule, 3, settings) == WORLD.truth(3)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_controller_that_consults_costs_emits_the_targets_law(rule: Rule) -> None:
    costs = [F(1), F(3, 2), F(9, 4)]
    assert emitted(WORLD, rule, 3, PAYING, costs) == WORLD.truth(3)


def test_the_costs_decide_in_this_world() -> None:
    """One window of one step: 2 of 2 accepted never trips, 1 of 2 only where it doesn't pay."""
    trips = set()
    for accepted, width, cost in itertools.product(range(3), range(1, 3), [F(3, 2), F(9, 4)]):
        if accepted <= width:
            controller = Controller(PAYING)
            controller.observe(accepted, width, cost)
            trips.add((accepted, width, cost, controller.speculates))
    assert (1, 2, F(3, 2), True) in trips
    assert (1, 2, F(9, 4), False) in trips


def two(text: Text) -> Law:
    return mixed([2 + last(text), 3 - last(text) + len(text) % 2])


DEEP = World(two, lambda text: mixed([1 + len(text) % 2, 2]), confidence, block=3)


@pytest.mark.parametrize("name", ["stop", "expect"])
def test_longer_blocks_and_texts(name: str) -> None:
    assert emitted(DEEP, RULES[name], 4, TRIGGER_HAPPY) == DEEP.truth(4)


def test_the_rules_choose_several_widths_in_these_worlds() -> None:
    for world, name in itertools.product((WORLD, DEEP), ("stop", "expect")):
        widths = set()

        def watched(known: list[Fraction], usual: list[Fraction], name: str = name) -> int:
            widths.add(RULES[name](known, usual))  # noqa: B023
            return RULES[name](known, usual)

        emitted(world, watched, 3)
        assert len(widths) > 1, "a rule with one answer proves nothing"


def test_looking_ahead_shows_in_these_worlds_too() -> None:
    law = emitted(WORLD, lambda known, usual: argmax(known, COSTS), 2)
    assert law != WORLD.truth(2)
    assert sum(law.values()) == 1


HALF = [F(1, 2), F(1, 2)]
NAMED_COSTS = [F(2), F(16, 5), F(18, 5)]
NAMED = World(
    lambda text: HALF,
    lambda text: HALF,
    lambda text: [F(6, 10), F(95, 100) if last(text) else F(1, 10)][len(text) > 0],
    block=2,
)
A, B = (0,), (1,)


def test_the_argmax_emits_b_three_times_out_of_four() -> None:
    law = emitted(NAMED, lambda known, usual: argmax(known, NAMED_COSTS), 1)
    assert law == {A: F(1, 4), B: F(3, 4)}


@pytest.mark.parametrize(
    "rule",
    [
        lambda known, usual: stop(known, NAMED_COSTS),
        lambda known, usual: expect(known, usual, NAMED_COSTS),
        lambda known, usual: expect(known, [F(6, 10), F(95, 100)], NAMED_COSTS),
        lambda known, usual: SpeedBudget(lambda rows: NAMED_COSTS[rows - 1]).widths([known], 1)[0],
    ],
    ids=["stop", "expect", "expect much", "pool of one"],
)
def test_on_the_named_example_the_others_are_exact(rule: Rule) -> None:
    assert emitted(NAMED, rule, 3) == NAMED.truth(3)


def test_the_pool_of_two_requests_emits_both_laws_independently() -> None:
    budget = SpeedBudget(lambda rows: F(10 + 3 * min(rows, 4) + rows))
    worlds = (NAMED, World(two, lambda text: mixed([1, 2]), confidence, block=2))
    law: dict[tuple[Text, Text], Fraction] = defaultdict(Fraction)
    chosen = set()
    pending: dict[tuple[Text, Text], Fraction] = {((), ()): F(1)}
    while pending:
        following: dict[tuple[Text, Text], Fraction] = defaultdict(Fraction)
        for texts, chance in pending.items():
            drafts = [list(w.drafts(t)) for w, t in zip(worlds, texts, strict=True)]
            for pair in itertools.product(*drafts):
                widths = budget.widths([known for _, known, _ in pair], len(worlds))
                chosen.add(tuple(widths))
                ends = [
                    list(world.verified(text, ids[:width]))
                    for world, text, (ids, _, _), width in zip(
                        worlds, texts, pair, widths, strict=True
                    )
                ]
                for (_, first, one), (_, second, other) in itertools.product(*ends):
                    after = texts[0] + first, texts[1] + second
                    part = chance * pair[0][2] * pair[1][2] * one * other
                    if min(map(len, after)) >= 2:
                        law[after[0][:2], after[1][:2]] += part
                    else:
                        following[after[0][:3], after[1][:3]] += part
        pending = following
    assert len(chosen) > 3, "a pool with few answers proves little"
    expected = {
        (one, other): a * b
        for one, a in worlds[0].truth(2).items()
        for other, b in worlds[1].truth(2).items()
    }
    assert law == expected


def grammar(text: Text) -> list[bool]:
    """A token may not come twice in a row, and behind two tokens the last one may not come."""
    banned = {last(text)} if text else set()
    return [token not in banned and not (len(text) == 2 and token == 2) for token in range(3)]


def masked(law: Callable[[Text], Law]) -> Callable[[Text], Law]:
    def found(text: Text) -> Law:
        parts = [part if can else F(0) for part, can in zip(law(text), grammar(text), strict=True)]
        return [part / sum(parts) for part in parts]

    return found


@pytest.mark.parametrize("settings", [OFF, TRIGGER_HAPPY], ids=["always", "controller"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_loop_emits_the_masked_law_of_the_target(
    rule: Rule, settings: FallbackSettings
) -> None:
    """Both laws behind the mask: what is emitted is the target's, and keeps the grammar."""
    world = World(masked(target), masked(drafter), confidence, block=2)
    law = emitted(world, rule, 3, settings)
    assert law == world.truth(3)
    assert all(grammar(text[:n])[text[n]] for text in law for n in range(3))
    assert law != WORLD.truth(3)


@pytest.mark.parametrize("width", [1, 2])
def test_masks_go_through_the_code_as_the_formula_says(width: int) -> None:
    """Drawn, judged and drawn again by the package: counted over a grid fine enough to be exact."""
    allowed = [torch.tensor(grammar(text)) for text in ((), (0,), (0, 1))]
    policy = Policy(SamplingParams(temperature=1))
    numbers = grid(24, width + 1)
    rows = torch.tensor([[3.0, 1.0, 2.0], [9.0, 5.0, 5.0], [7.0, 1.0, 9.0]]).log()[: width + 1]
    drafts = torch.tensor([[4.0, 1.0, 1.0], [4.0, 2.0, 1.0]]).log()[:width]
    proposals = torch.tensor([0, 1][:width])
    p = policy.laws(rows, proposals, None, allowed[: width + 1])
    q = torch.stack([policy.law(row, None, allowed[n]) for n, row in enumerate(drafts)])
    count = len(numbers)
    uniforms = BlockUniforms(numbers[:, :width], numbers[:, width:].expand(-1, width + 1))
    kept, tokens = accept(
        p.expand(count, -1, -1), q.expand(count, -1, -1), proposals.expand(count, -1), uniforms
    ).unbind(1)
    for row in range(width + 1):
        drawn = tokens[kept == row]
        assert allowed[row][drawn].all(), "nothing outside the mask, wherever it was rejected"
        residual = (p[row] - q[row]).clamp(min=0) if row < width else p[row]
        if len(drawn):
            share = torch.bincount(drawn, minlength=3) / len(drawn)
            expected = (residual / residual.sum()).tolist()
            assert share.tolist() == pytest.approx(expected, abs=1 / 24)
    assert len(kept.unique()) > 1


def grid(steps: int, places: int) -> torch.Tensor:
    """Return every choice of `places` numbers at the middles of equal cells."""
    middles = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    return torch.cartesian_prod(*[middles] * places).view(-1, places)


@pytest.mark.parametrize("width", [0, 1, 2])
def test_the_acceptance_code_is_the_formula(width: int) -> None:
    """On a grid whose cells are as fine as every threshold, counting cells is integrating."""
    cells = 12
    p = [mixed([3, 9]), mixed([8, 4]), mixed([6, 6])][: width + 1]
    q = [mixed([6, 6]), mixed([6, 6])][:width]
    world = World(
        lambda text: p[len(text)], lambda text: q[len(text)], lambda text: F(1), block=width
    )
    numbers = grid(cells, width + 1)
    uniforms = BlockUniforms(numbers[:, :width], numbers[:, width:].expand(-1, width + 1))
    count = len(numbers)
    for ids in itertools.product(range(2), repeat=width):
        laws = [torch.tensor([[float(x) for x in law] for law in part]) for part in (p, q)]
        laws = [law.double().view(-1, 2).expand(count, -1, -1) for law in laws]
        proposals = torch.tensor(ids, dtype=torch.int64).view(1, width).expand(count, -1)
        found = accept(laws[0], laws[1], proposals, uniforms).tolist()
        expected = {(a, tokens[-1]): chance for a, tokens, chance in world.verified((), ids)}
        assert {key: F(found.count([*key]), count) for key in expected} == expected
