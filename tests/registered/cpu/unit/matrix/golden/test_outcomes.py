"""The golden of resolution over the whole product of the start axes is exact and in groups."""

import random
from dataclasses import fields

import pytest
import yaml

from specmatrix.engine.core.config.asked import Resolved
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
    compared = {field.name for field in fields(Resolved)} - DERIVED - LEFT_OUT - {"reasons", "rewrites"}
    assert {"disable_radix_cache" if name == "radix_cache" else name for name in compared} <= shown
