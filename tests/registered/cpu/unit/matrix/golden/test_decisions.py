"""How random combinations of settings resolve: a golden count for each decision, so that a changed rule or default is
reviewed as a diff of a few rows."""

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache

from specmatrix.engine.core.config.asked import EngineConfig, Facts
from specmatrix.engine.core.config.context import RuleContext
from specmatrix.engine.core.config.defaults import DEFAULTS
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.table import CAPACITY, RULES
from specmatrix.errors import ConfigError
from specmatrix.matrix.golden.knobs import KNOBS, configured

COMBINATIONS = 10_000


def combinations() -> Iterator[tuple[EngineConfig, Facts]]:
    """Each setting is the default half of the time; otherwise hardly any combination would run."""
    chance = random.Random(0)
    for _ in range(COMBINATIONS):
        yield configured(KNOBS, [chance.choice((0, chance.randrange(len(knob.settings)))) for knob in KNOBS])


def refusing(config: EngineConfig, facts: Facts, message: str) -> str:
    """The rule that refuses the combination; its message must be the one raised."""
    context = RuleContext.of(config, facts)
    broken = [rule for rule in RULES if rule.kind == "refused" and rule.broken(context)]
    if broken:
        assert message == broken[0].message(context)
        return broken[0].name
    assert message.startswith(f"max_total_tokens {config.max_total_tokens} ")
    return CAPACITY.name


@cache
def decisions() -> Counter[str]:
    """Combinations by the rules that refuse or rewrite them, and by the reason of each automatic value."""
    found: Counter[str] = Counter()
    for config, facts in combinations():
        try:
            resolved = resolve(config, facts)
        except ConfigError as error:
            found[f"refused: {refusing(config, facts, str(error))}"] += 1
            continue
        found["runs"] += 1
        context = RuleContext.of(config, facts)
        expected = [rule for rule in RULES if rule.got is not None and rule.broken(context)]
        assert [rewrite.field for rewrite in resolved.rewrites] == [rule.field for rule in expected]
        for rule, rewrite in zip(expected, resolved.rewrites, strict=True):
            assert (rewrite.asked, rewrite.got) == (getattr(config, rule.field), rule.got(context))
        found.update(f"rewritten: {rule.name}" for rule in expected)
        found.update(f"chosen: {reason.field} {reason.value} because {reason.because}" for reason in resolved.reasons)
    return found


def test_the_decisions_are_golden(file_regression):
    rows = [f"{count:6d}  {decision}" for decision, count in sorted(decisions().items())]
    file_regression.check("\n".join(rows) + "\n", basename="decisions")


def test_every_rewrite_and_every_automatic_field_occurs():
    reached = set(decisions())
    assert {f"rewritten: {rule.name}" for rule in RULES if rule.got is not None} <= reached
    assert {row.field for row in DEFAULTS} <= {text.split()[1] for text in reached if text.startswith("chosen: ")}
