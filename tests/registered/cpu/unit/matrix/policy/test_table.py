"""The launch policy over the full product of settings: a golden to review, and proof that it is `resolve`'s own."""

import difflib
import random
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from specmatrix.engine.core.config.context import RuleContext
from specmatrix.engine.core.config.defaults import DEFAULTS
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.table import CAPACITY
from specmatrix.errors import ConfigError
from specmatrix.matrix.policy.knobs import KNOBS, launch
from specmatrix.matrix.policy.table import Policy, policy, policy_table

pytestmark = pytest.mark.register(est_seconds=10, tier="cpu", stage="pr")

FEW = ("speculative_num_steps", "speculative_eagle_topk", "spec_version", "max_total_tokens", "page_size")
NARROW = tuple(replace(knob, settings=knob.settings[: 5 if knob.name in (*FEW, "models") else 1]) for knob in KNOBS)


def text_of(of: Policy) -> str:
    return yaml.safe_dump(policy_table(of), sort_keys=False, width=118)


@pytest.fixture(scope="module")
def whole() -> Policy:
    """Every combination; tabulated once, as it takes seconds."""
    return policy()


def test_the_policy_is_golden(whole, file_regression, request):
    golden = Path(request.node.path).with_suffix("") / "policy.yaml"
    forced = request.config.getoption("force_regen")
    assert golden.is_file() or forced, "policy.yaml is missing; run with --force-regen and review it"
    file_regression.check(text_of(whole), extension=".yaml", basename="policy")


def at(table, point):
    """The table's value at a combination."""
    index = tuple(i if length > 1 else 0 for i, length in zip(point, table.index.shape, strict=True))
    return table.leaves[table.index[index]]


def points(of: Policy, count: int):
    """Random combinations; each setting is the default half of the time, or hardly any would run."""
    chance = random.Random(0)
    for _ in range(count):
        yield tuple(chance.choice((0, chance.randrange(len(knob.settings)))) for knob in of.space.knobs)


def test_every_tabulated_decision_is_that_of_resolve(whole):
    """On random combinations: the refusing rule and its sentence, or every rewrite, value and reason."""
    ran = 0
    for point in points(whole, 10_000):
        config, facts = launch(whole.space.knobs, point)
        index = tuple(i if length > 1 else 0 for i, length in zip(point, whole.refused.shape, strict=True))
        number = int(whole.refused[index])
        try:
            resolved = resolve(config, facts)
        except ConfigError as error:
            rule = whole.refusals[number - 1]
            assert number, f"resolve refuses {config}: {error}"
            if rule is CAPACITY:
                assert str(error).startswith(f"max_total_tokens {config.max_total_tokens} holds no request")
            else:
                assert str(error) == rule.sentence(RuleContext.of(config, facts))
            continue
        assert not number, f"{whole.refusals[number - 1].name} refuses {config}, and resolve does not"
        ran += 1
        pairs = zip(whole.rewriting, whole.rewritten, strict=True)
        rewrites = [(rule.field, *found) for rule, table in pairs if (found := at(table, point))]
        assert [(r.field, r.asked, r.got) for r in resolved.rewrites] == rewrites
        choices = {name: at(table, point) for name, table in whole.chosen.items()}
        reasons = {(n, c.value, c.by.partition(": ")[2]) for n, c in choices.items() if c.how == "default"}
        reasons |= {(r.field, r.value, r.because) for table in whole.reasons.values() for r in at(table, point)}
        assert {(r.field, r.value, r.because) for r in resolved.reasons} == reasons
        assert choices["speculative_num_steps"].value == resolved.num_steps
        assert choices["max_total_tokens"].value == resolved.max_total_tokens
    assert ran > 1500


def test_the_parts_make_up_the_whole(whole):
    table = policy_table(whole)
    sizes = table["combinations"]
    assert sizes["all"] == sum(sizes.values()) - sizes["all"]
    assert sum(row["combinations"] for row in table["refused"]) == sizes["refused"]
    choosing = {sum(row["combinations"] for row in rows) for rows in table["chosen"].values()}
    assert choosing == {whole.space.count(whole.runs)}


def test_a_changed_default_is_a_diff_of_a_few_lines():
    """Trees promoted to v2: their row, and what follows from it."""
    promoted = [replace(row, value=lambda s: "v2") if row.condition == "a tree (topk > 1)" else row for row in DEFAULTS]
    assert promoted != list(DEFAULTS)
    before, after = (text_of(policy(NARROW, defaults=rows)).splitlines() for rows in (DEFAULTS, promoted))
    changed = [line for line in difflib.ndiff(before, after) if line[:2] in ("- ", "+ ")]
    assert any("v1" in line for line in changed) and any("v2" in line for line in changed)
    assert 2 <= len(changed) <= 12
