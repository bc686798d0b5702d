import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from math import prod

import pytest

from specmatrix.matrix.cells.axes import AXES, NAMES, START_AXES, axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS, expect, explain
from specmatrix.matrix.cells.enumerate import starts
from specmatrix.matrix.cover import lock, verify
from specmatrix.matrix.cover.lock import PRESETS as BY_STAGE
from specmatrix.matrix.cover.lock import cover, negative_constraints, negatives, sweep
from specmatrix.matrix.cover.verify import PIVOTS, allowed, components, feasible, uncovered, uncovered_sweep

PRESETS = BY_STAGE["smoke"] | BY_STAGE["pr"] | BY_STAGE["nightly"]
INCIDENTS = ("sglang#21062", "sglang#26866", "sglang#24055", "sglang#24999", "sglang#22651")


def test_every_enumerated_cell_runs_and_they_are_the_product_minus_forbidden_ones():
    by_start = [name for name in PIVOTS if name in START_AXES]
    places = [NAMES.index(name) for name in by_start]
    some = random.Random(7).sample(list(product(*(axis(name).names for name in by_start))), 200)

    def may(prefix: tuple[str, ...]) -> bool:
        return any(
            all(prefix[place] == value for place, value in zip(places, values, strict=True) if place < len(prefix))
            for values in some
        )

    found = list(starts(CONSTRAINTS, may))
    cells = (Cell(*start, *tail) for start, tails in found for tail in tails)
    assert all(explain(cell) == () for cell in islice(cells, 0, 1_000_000, 997))
    assert (
        0
        < sum(len(tails) for _, tails in found)
        == sum(
            prod(len(allowed(component, (*values, *rest))) for component in components())
            for values in some
            for rest in product(*(axis(name).names for name in PIVOTS[len(by_start) :]))
        )
    )


def test_naming_and_covering_cells_imports_no_torch():
    modules = "from specmatrix.matrix.cover import lock, verify"
    code = f"import sys; {modules}; verify.feasible(1); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "False\n"


@pytest.fixture
def small(monkeypatch) -> Iterator[list[Cell]]:
    """A product of two values an axis, and the presets that lie in it."""
    few = tuple(replace(axis, values=axis.values[:2]) for axis in AXES)
    monkeypatch.setattr(lock, "AXES", few)
    monkeypatch.setattr(verify, "AXES", few)
    feasible.cache_clear()
    yield [cell for cell in map(Cell.from_id, PRESETS) if all(v in a.names for v, a in zip(cell, few, strict=True))]
    feasible.cache_clear()


def test_pairs_are_completely_covered_the_same_each_time_and_around_kept_cells(small):
    cells, fresh = cover(2), cover(2, small)
    assert uncovered(cells, 2) == [] and all(expect(cell) == "runs" for cell in cells)
    assert cover(1) == cover(1) != []
    assert uncovered([*small, *fresh], 2) == []
    assert not set(small) & set(fresh) and len(fresh) <= len(cells)


@pytest.mark.parametrize("text", PRESETS)
def test_a_preset_runs_and_is_written_as_its_id(text):
    cell = Cell.from_id(text)
    assert cell.id == text
    # A flat file runs as the one slot that it is rewritten to.
    assert expect(cell) == ("rewritten" if cell.adaptive == "flat" else "runs")


def test_every_incident_has_presets_and_a_preset_stands_under_one_stage():
    for incident in INCIDENTS:
        assert any(note.startswith(incident) for note in PRESETS.values()), incident
    assert len(PRESETS) == sum(map(len, BY_STAGE.values()))


@pytest.mark.parametrize("constraint", negative_constraints(), ids=lambda c: c.name)
def test_negative_cells_trigger_exactly_their_constraint(constraint):
    cells = negatives(constraint, 4)
    assert cells and len(set(cells)) == len(cells)
    assert {(explain(cell), expect(cell)) for cell in cells} == {((constraint,), constraint.kind)}


def test_all_refused_and_rewritten_constraints_are_tested():
    assert {c.kind for c in CONSTRAINTS if c not in negative_constraints()} == {"impossible", "redundant", "optional"}


def test_a_sweep_holds_every_request_pair_on_one_start():
    start = Cell.from_id(lock.TABLE["sweeps"]["nightly"][0])
    cells = sweep(start)
    assert {cell.start_key for cell in cells} == {start.start_key}
    assert uncovered_sweep(start, cells) == []
    assert uncovered_sweep(start, cells[: len(cells) // 2]) != []
    assert len({tuple(axis for axis, _ in pair) for pair in uncovered_sweep(start, [])}) == 15, "pairs of six axes"
