"""The golden of resolution over the whole product of the start axes is exact, compact, and changes by few lines."""

import difflib
import random
from dataclasses import fields, replace

import pytest
import yaml

import specmatrix.engine.core.config.defaults
import specmatrix.engine.core.config.resolve
from specmatrix.engine.core.config.asked import Resolved
from specmatrix.engine.core.config.defaults import DEFAULTS
from specmatrix.engine.core.config.rules.table import RULES
from specmatrix.matrix.cells.axes import START_AXES, axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.golden.outcomes import DEPENDS, DERIVED, LEFT_OUT, REFUSED, RENAMED, resolution, start_outcomes
from specmatrix.matrix.golden.review import GOLDEN_FILE, compiled, expected


def text_of(groups) -> str:
    return yaml.safe_dump(groups, sort_keys=False, width=118)


@pytest.fixture(scope="module")
def groups():
    """Every start; tabulated once, as it takes seconds."""
    return resolution()


def test_the_resolution_is_golden(groups, file_regression, request):
    assert GOLDEN_FILE.is_file() or request.config.getoption("force_regen"), "run with --force-regen and review it"
    file_regression.check(text_of(groups), extension=".yaml", fullpath=GOLDEN_FILE)


def test_every_start_resolves_as_its_groups_say(groups):
    """Those of the lock file, and random ones of the whole product."""
    golden, chance = compiled(groups), random.Random(0)
    drawn = [Cell(**{name: chance.choice(axis(name).names) for name in START_AXES}) for _ in range(1000)]
    ran = 0
    for cell in [*stage_cells("nightly"), *drawn]:
        assert expected(golden, cell) == start_outcomes(cell), cell.id
        ran += REFUSED not in expected(golden, cell)
    assert ran > 400


def test_every_resolved_field_is_compared():
    shown = {RENAMED.get(name, name) for name in DEPENDS}
    restated = {"radix_cache": "disable_radix_cache"}
    explanations = {"reasons", "rewrites"}
    for name in {field.name for field in fields(Resolved)} - DERIVED - LEFT_OUT - explanations:
        assert restated.get(name, name) in shown


def moved(groups) -> list[str]:
    """Lines of the golden file that a change of the engine removes or adds."""
    lines = difflib.ndiff(text_of(groups).splitlines(), text_of(resolution()).splitlines())
    return [line for line in lines if line[:2] in ("- ", "+ ")]


def otherwise(field, value):
    """The defaults with a different value in a field's fallback row."""
    return tuple(
        replace(row, value=value) if (row.field, row.condition) == (field, "otherwise") else row for row in DEFAULTS
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("field", "value", "most"),
    [("speculative_num_steps", 4, 6), ("spec_version", "v1", 6)],
)
def test_a_changed_default_moves_a_few_lines(groups, monkeypatch, field, value, most):
    monkeypatch.setattr(specmatrix.engine.core.config.defaults, "DEFAULTS", otherwise(field, value))
    lines = moved(groups)
    assert 2 <= len(lines) <= most
    assert any(str(value) in line for line in lines)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "most"), [("window-uncached", 9), ("no-step-in-flight", 6)])
def test_a_dropped_rule_moves_a_few_lines(groups, monkeypatch, name, most):
    monkeypatch.setattr(
        specmatrix.engine.core.config.resolve, "RULES", tuple(rule for rule in RULES if rule.name != name)
    )
    assert 2 <= len(moved(groups)) <= most
