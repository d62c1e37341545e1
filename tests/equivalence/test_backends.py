"""The text of a whole model does not depend on where its experts run."""

from itertools import product
from pathlib import Path

import pytest

from deskside.config.engine import EngineOptions
from deskside.core import SamplingParams
from deskside.errors import CapacityError, ProfileError
from deskside.llm import LLM, Result
from tests.equivalence.test_engine import PROMPTS, opened, params

BACKENDS: list[dict[str, object]] = [
    {"backend": "cpu"},
    {"backend": "resident"},
    {"backend": "fetch", "expert_slots": 8},
    {"backend": "fetch"},
    *(
        {"backend": "hybrid", "fetch_fraction": fraction, "expert_slots": slots}
        for fraction, slots in product((0.0, 0.28, 1.0), (8, 13, 40))
    ),
    {"backend": "hybrid", "fetch_fraction": 0.28, "expert_slots": 2, "max_running": 1},
    *(
        {"backend": "hybrid", "fetch_fraction": 0.28, "expert_slots": slots, "speculation": width}
        for slots, width in ((8, 3), (64, "auto"))
    ),
]
CODE = ["def fibonacci(n):", "import os\n\n\ndef main():\n", "class Stack:\n"]


def words(options: dict[str, object]) -> str:
    return "-".join(str(value) for value in options.values())


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    return continued({})


def continued(options: dict[str, object]) -> list[tuple[int, ...]]:
    """Return what deskside-mini makes of a few prompts together, greedily."""
    defaults = {"kv_tokens": 4096, "threads": 1, "speculation": "off"}
    asked = EngineOptions(**{**defaults, **options})  # type: ignore[arg-type]
    with LLM.open("deskside-mini", asked) as llm:
        results = llm.generate(CODE, SamplingParams(temperature=0, max_tokens=48))
    return [result.token_ids for result in results]


@pytest.mark.parametrize("options", BACKENDS, ids=words)
def test_greedy_text_of_the_built_in_model(
    options: dict[str, object], expected: list[tuple[int, ...]]
) -> None:
    assert min(len(tokens) for tokens in expected) > 8
    assert continued(options) == expected


def told(results: list[Result]) -> list[tuple[object, ...]]:
    return [(one.token_ids, one.acceptance) for one in results]


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_bytes_and_acceptance_with_the_drafter(drafting: Path, temperature: float) -> None:
    """With one path for all rows even sampled text and every accepted proposal are the same."""
    same = {"numerics": "exact", "speculation": 3, "fallback": False}
    sampling = params(temperature=temperature, max_tokens=12)
    prompts = ["def f(x):", "x" * 40]
    expected = told(opened(drafting, **same).generate(prompts, sampling))
    for slots, fraction in ((8, 1.0), (8, 0.28), (20, 0.28), (7 * 8, 0.28), (13, 0.0)):
        other = opened(
            drafting, backend="hybrid", fetch_fraction=fraction, expert_slots=slots, **same
        )
        assert told(other.generate(prompts, sampling)) == expected


def test_company_changes_nothing_in_slots(drafting: Path) -> None:
    """Nor does residency: requests alone, one after the other, find other experts there."""
    llm = opened(
        drafting,
        backend="hybrid",
        fetch_fraction=0.28,
        expert_slots=9,
        speculation=3,
        fallback=False,
    )
    sampling = params(max_tokens=16)
    together = told(llm.generate(PROMPTS, sampling))
    alone = [told(llm.generate([prompt], sampling))[0] for prompt in PROMPTS]
    assert together == alone


def test_what_cannot_run_is_refused_before_weights_are_read(drafting: Path) -> None:
    with pytest.raises(CapacityError, match=r"--expert-slots 7: .* need 8 slots"):
        opened(drafting, backend="fetch", expert_slots=7)
    with pytest.raises(ProfileError, match="--fetch-fraction auto: no profile of this model"):
        opened(drafting, backend="hybrid")
