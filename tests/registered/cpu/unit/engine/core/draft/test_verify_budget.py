"""How many drafts a round verifies, against every choice."""

from __future__ import annotations

import json
import random
from itertools import product

import pytest

from specmatrix.engine.core.draft.verify_budget import VerifyBudget, survivals, temperatures
from specmatrix.errors import ConfigError
from tests.support.tables import table


def priced(slope: float, most: int = 40) -> VerifyBudget:
    """Each verified token makes a step longer by `slope` of its fixed part."""
    tokens = range(1, most)
    return VerifyBudget(tuple(tokens), tuple(1 / (1 + slope * n) for n in tokens))


def rows(seed: int, count: int, drafts: int) -> list[tuple[float, ...]]:
    source = random.Random(seed)
    return [survivals([source.random() ** 0.3 for _ in range(drafts)]) for _ in range(count)]


def test_survivals_fall_along_a_row():
    held = survivals([0.5, 1.0, 0.25])
    assert held == (0.5, 0.5, 0.125) and survivals([]) == ()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("slope", [0.0, 0.05, 0.3, 3.0])
def test_the_budget_is_that_of_the_best_choice_of_prefixes(seed, slope):
    held = rows(seed, 3, 3)
    budget, costs = priced(slope).of(held), priced(slope)

    def rate(lengths: tuple[int, ...]) -> float:
        gain = len(held) + sum(sum(row[:length]) for row, length in zip(held, lengths, strict=True))
        return gain * costs.rates[len(held) + sum(lengths) - 1]

    best = max(product(range(4), repeat=3), key=rate)
    assert rate(best) == pytest.approx(max(rate(one) for one in product(range(4), repeat=3) if sum(one) == budget))


def test_dearer_tokens_never_raise_it():
    held = rows(9, 5, 6)
    budgets = [priced(slope).of(held) for slope in (0, 0.01, 0.03, 0.1, 0.3, 1, 3, 30)]
    assert budgets == sorted(budgets, reverse=True) and budgets[0] == 30 and budgets[-1] < budgets[1]


def test_a_rate_holds_up_to_the_next_and_the_best_budget_may_lie_behind_a_worse_one():
    costs = VerifyBudget((2, 3, 6), (10.0, 5.0, 4.9))
    assert costs.of([(1.0, 1.0, 1.0)] * 2) == 6 and costs.of([(0.1,) * 3] * 2) == 0
    assert costs.of([(1.0, 1e-7)] * 2) == 0 and costs.of([(), ()]) == 0


@pytest.mark.parametrize(("text", "sentence"), table(__file__)["wrong"])
def test_wrong_tables(text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        VerifyBudget.parse(text)


def test_what_sglang_writes_is_read():
    text = json.dumps({"sample_batch_tokens": [1, 8], "sample_steps_per_sec": [90.5, 80], "max_batch_tokens": 64})
    assert VerifyBudget.parse(text) == VerifyBudget((1, 8), (90.5, 80))
    assert temperatures('{"temperatures": [1.5, 2], "dataset": "x"}') == (1.5, 2)
    with pytest.raises(ConfigError, match=r"sts_path: temperatures must be a list of positive numbers, got \[-1\]"):
        temperatures('{"temperatures": [-1]}')
