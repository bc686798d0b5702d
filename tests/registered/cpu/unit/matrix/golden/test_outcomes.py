"""The golden of resolution over the whole product of the start axes is exact and in groups."""

import random
from dataclasses import fields
from itertools import product

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specmatrix.engine.core.config.asked import EngineConfig, Resolved
from specmatrix.engine.core.config.context import RuleContext
from specmatrix.engine.core.config.rules.table import RULES
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import START_AXES, axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import explain
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.golden.outcomes import (
    EVERY,
    FIELDS,
    FLAGS_FILE,
    GOLDEN_FILE,
    REFUSED,
    changed_flag,
    compiled,
    expected,
    flags_of,
    golden_flags,
    outcome_of,
    products,
    resolution,
    start_outcomes,
    where_of,
    with_flags,
)
from specmatrix.reports.yaml_text import parse_yaml


@pytest.mark.nightly
def test_the_resolution_is_golden(file_regression, request):
    """Every start, which takes minutes."""
    assert GOLDEN_FILE.is_file() or request.config.getoption("force_regen"), "run with --force-regen and review it"
    text = yaml.safe_dump(resolution(), sort_keys=False, width=118)
    file_regression.check(text, extension=".yaml", fullpath=GOLDEN_FILE)


def test_starts_resolve_as_their_groups_say():
    """Those of the lock file, cells that differ from these by one or two axes, and random starts."""
    golden, chance = compiled(parse_yaml(GOLDEN_FILE.read_text(encoding="utf-8"), own=True)), random.Random(0)
    locked = stage_cells("nightly")
    near = [
        chance.choice(locked)._replace(
            **{name: chance.choice(axis(name).names) for name in chance.sample(START_AXES, 2)}
        )
        for _ in range(20_000)
    ]
    drawn = [Cell(**{name: chance.choice(axis(name).names) for name in START_AXES}) for _ in range(1000)]
    ran = 0
    for cell in [*locked, *(cell for cell in near if not explain(cell)), *drawn]:
        found = start_outcomes(cell)
        assert expected(golden, cell) == found, f"{cell.id}: run the nightly test with --force-regen"
        ran += REFUSED not in found
    assert ran > 5000


def test_every_resolved_field_is_compared():
    shown = {FIELDS.renamed.get(name, name) for name in FIELDS.depends}
    compared = {field.name for field in fields(Resolved)} - FIELDS.derived - FIELDS.left_out - {"reasons", "rewrites"}
    assert {"disable_radix_cache" if name == "radix_cache" else name for name in compared} <= shown


AXES = ("model", "spec_version", "overlap")
POINTS = list(product(*(axis(name).names for name in AXES)))


def cell_of(values):
    return Cell(**dict(zip(AXES, values, strict=True)))


@given(st.lists(st.sampled_from(["a", "b", None]), min_size=len(POINTS), max_size=len(POINTS)))
def test_each_combination_is_only_in_products_of_its_outcome(outcomes):
    table = dict(zip(POINTS, outcomes, strict=True))
    found = [(outcome, where_of(text)) for outcome, text in products(AXES, table)]
    for values, outcome in table.items():
        within = {name for name, where in found if where(cell_of(values))}
        assert outcome is None or within == {outcome}


def test_what_never_matters_is_not_spelt_out():
    table = {values: "a" if values[0] == "qwen3" else None if values[2] == "off" else "b" for values in POINTS}
    others = ",".join(name for name in axis("model").names if name != "qwen3")
    assert list(products(AXES, table)) == [("b", f"model={others}"), ("a", "model=qwen3")]
    assert list(products(AXES, dict.fromkeys(POINTS, "a"))) == [("a", EVERY)]
    assert list(products((), {(): "a"})) == [("a", EVERY)]
    assert where_of(EVERY)(Cell())


def test_a_renamed_outcome_moves_nothing():
    table = {values: "a" if values[1] == "v2" else "b" for values in POINTS}
    renamed = {values: "z" if outcome == "a" else outcome for values, outcome in table.items()}
    assert [where for _, where in products(AXES, table)] == [where for _, where in products(AXES, renamed)]


def test_a_product_within_others_is_dropped():
    """Two overlapping products contain everything that a third would."""
    names = axis("spec_version").names
    table = {values: "a" if values[1] != names[0] or values[2] == "on" else "b" for values in POINTS}
    wheres = [where for outcome, where in products(AXES, table) if outcome == "a"]
    assert wheres == ["overlap=on", "spec_version=v1,v2"]


GOLDEN = golden_flags()


def test_what_flags_do_is_golden(file_regression):
    found = {start: {words: outcome_of(Cell.from_id(start), words) for words in rows} for start, rows in GOLDEN.items()}
    text = yaml.safe_dump(found, sort_keys=False, width=118, allow_unicode=True)
    file_regression.check(text, extension=".yaml", fullpath=FLAGS_FILE)


def test_every_rule_is_broken_alone_by_some_flags():
    reached = set()
    for start, rows in GOLDEN.items():
        for words in rows:
            flags, facts = with_flags(Cell.from_id(start), words)
            try:
                context = RuleContext.of(EngineConfig.from_flags(flags), facts)
            except ConfigError:
                continue
            found = {rule.name for rule in RULES if rule.broken(context)}
            reached |= found if len(found) == 1 else set()
    # Only an algorithm of a user's own breaks that one.
    assert {rule.name for rule in RULES} - reached == {"registered-on-ranks"}


def test_the_first_flags_with_another_outcome_are_named():
    cell, other, words = Cell.from_id("ngram.qwen3.pair"), Cell.from_id("standalone.pair"), "--spec-version v2"
    assert changed_flag(GOLDEN, cell) == changed_flag(GOLDEN, other) == changed_flag({}, cell) == ""
    golden = {**GOLDEN, "ngram": {**GOLDEN["ngram"], words: "refused: no"}}
    text = f"ngram with {words} {GOLDEN['ngram'][words]!r}; the golden file expects 'refused: no'"
    assert (changed_flag(golden, other), changed_flag(golden, cell)) == ("", text)


def test_flags_are_what_is_typed_on_a_command_line():
    config = EngineConfig("m", page_size=16, enable_multi_layer_eagle=False, disable_radix_cache=True)
    flags = flags_of(config)
    assert EngineConfig.from_flags(flags) == config
    assert (flags["--page-size"], flags["--disable-radix-cache"], flags["--spec-version"]) == ("16", "true", "auto")
    assert "--speculative-draft-model-path" not in flags
