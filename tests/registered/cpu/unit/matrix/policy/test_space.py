"""Tabulation without enumeration, against enumeration."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from specmatrix.engine.core.config.asked import Facts
from specmatrix.engine.core.config.context import RuleContext
from specmatrix.matrix.policy.knobs import Knob, Setting, describe, launch
from specmatrix.matrix.policy.space import Space

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

FACTS = Facts("LlamaForCausalLM", 512, 128, 4, 64)
KNOWN = {name: getattr(FACTS, name) for name in Facts.__dataclass_fields__}
MODELS = Knob(
    "models",
    (
        Setting("plain", {"model_path": "m"}, KNOWN),
        Setting("grams", {"model_path": "m", "speculative_algorithm": "NGRAM"}, KNOWN),
    ),
)


def knob(name, *values: object) -> Knob:
    return Knob(name, tuple(Setting(str(value), {name: value}) for value in values))


KNOBS = (
    MODELS,
    knob("page_size", 1, 4, 16),
    knob("random_seed", 0, 1),
    knob("strict_memory", 0, 1, 2),
    Knob("machine", (Setting("CPU"), Setting("GPU", facts={"device_kind": "cuda", "gpus": 1}))),
)
POINTS = list(product(*(range(len(knob.settings)) for knob in KNOBS)))
ALL = np.ones((1,) * len(KNOBS), bool)


def at(table, point):
    """The table's value at a combination."""
    return table.leaves[table.index[tuple(min(i, n - 1) for i, n in zip(point, table.index.shape, strict=True))]]


def page(s):
    return s.asked.page_size


FUNCTIONS = [
    (lambda s: page(s) > 1 and (s.asked.strict_memory == 2 or s.asked.random_seed == 1), (1, 3, 2, 3, 1)),
    (lambda s: page(s) * 10 + s.asked.strict_memory, (1, 3, 1, 3, 1)),
    (lambda s: page(s) < 0, (1, 1, 1, 1, 1)),
    (lambda s: s.facts.context_length // page(s), (1, 3, 1, 1, 1)),
    (lambda s: (s.asked.kv_stamps, s.facts.vocab_size), (1, 1, 1, 1, 1)),
    (lambda s: s.facts.gpus + s.asked.random_seed, (1, 1, 2, 1, 2)),
    (lambda s: s.traits.reads_host and page(s) == 4, (2, 3, 1, 1, 1)),
]


@pytest.mark.parametrize(("function", "shape"), FUNCTIONS)
def test_a_table_says_what_the_function_says_along_the_settings_that_matter(function, shape):
    space = Space(KNOBS)
    table = space.tabulate(function)
    said = {point: function(RuleContext.of(*launch(KNOBS, point))) for point in POINTS}
    assert {point: at(table, point) for point in POINTS} == said
    assert table.index.shape == shape and space.size == len(POINTS) == 72
    assert space.counts(table, ALL) == Counter(said.values())
    first = next(point for point in POINTS if said[point] == table.leaves[-1])
    assert at(table, space.first(table.where(lambda value: value == table.leaves[-1]))) == said[first]


def test_counts_are_taken_where_another_table_is_true():
    space = Space(KNOBS)
    strict = space.tabulate(lambda s: s.asked.strict_memory > 0 and page(s) < 16).where(bool)
    odd = space.tabulate(lambda s: (page(s) + s.asked.random_seed) % 2)
    wanted = Counter((((1, 4, 16)[p[1]]) + p[2]) % 2 for p in POINTS if p[3] > 0 and p[1] < 2)
    assert space.counts(odd, strict) == wanted
    assert space.count(strict, odd.where(bool)) == wanted[1]


def test_chosen_fields_are_read_as_single_variables():
    """Values that no launch has together may be nonsense to a function; the table never holds them."""
    space = Space(KNOBS)
    space.chosen["half"] = space.tabulate(lambda s: page(s) // 2)
    space.chosen["page"] = space.tabulate(page)

    def quotient(s):
        return s.chosen["page"] // s.chosen["half"] if page(s) > 1 else s.asked.random_seed

    table = space.tabulate(quotient)
    assert {at(table, point) for point in POINTS} == {0, 1, 2}
    assert all(at(table, point) == (2 if point[1] else point[2]) for point in POINTS)


def test_an_error_that_a_launch_would_meet_is_raised():
    with pytest.raises(ZeroDivisionError):
        Space(KNOBS).tabulate(lambda s: page(s) // s.asked.random_seed)


def test_a_combination_is_described_by_what_is_not_default():
    assert describe(KNOBS, (0, 0, 1, 0, 1)) == "models=plain random_seed=1 machine=GPU"
    config, facts = launch(KNOBS, (1, 2, 0, 0, 1))
    assert (config.speculative_algorithm, config.page_size, facts.device_kind) == ("NGRAM", 16, "cuda")
