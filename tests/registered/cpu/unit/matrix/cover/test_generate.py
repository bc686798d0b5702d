import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from math import prod

import pytest

from specmatrix.matrix.cells.axes import AXES, axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS, expect, explain
from specmatrix.matrix.cells.enumerate import starts
from specmatrix.matrix.cover import generate, verify
from specmatrix.matrix.cover.generate import (
    SWEEPS,
    cover,
    negative_constraints,
    negatives,
    sweep,
)
from specmatrix.matrix.cover.lock import PRESETS as BY_STAGE
from specmatrix.matrix.cover.verify import PIVOTS, allowed, components, feasible, uncovered, uncovered_sweep

PRESETS = BY_STAGE["smoke"] | BY_STAGE["pr"] | BY_STAGE["nightly"]
INCIDENTS = ("sglang#21062", "sglang#26866", "sglang#24055", "sglang#24999", "sglang#22651")

NAMED = """
import sys
from itertools import islice
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS
from specmatrix.matrix.cells.enumerate import starts
from specmatrix.matrix.cover import generate, lock, verify
every = (Cell(*start, *tail) for start, tails in starts(CONSTRAINTS) for tail in tails)
ids = [cell.id for cell in islice(every, 100_000)]
print(len(set(ids)), "torch" in sys.modules)
"""


def test_every_enumerated_cell_runs():
    cells = (Cell(*start, *tail) for start, tails in starts(CONSTRAINTS) for tail in tails)
    assert all(explain(cell) == () for cell in islice(cells, 0, 1_000_000, 997))


def test_the_enumeration_is_the_product_minus_forbidden_cells():
    count = sum(len(tails) for _, tails in starts(CONSTRAINTS))
    assert count == sum(
        prod(len(allowed(component, pivots)) for component in components())
        for pivots in product(*(axis(name).names for name in PIVOTS))
    )


def test_a_hundred_thousand_cells_are_named_without_torch():
    out = subprocess.run([sys.executable, "-c", NAMED], capture_output=True, text=True, check=True).stdout.split()
    assert out == ["100000", "False"]


@pytest.fixture
def small(monkeypatch) -> Iterator[list[Cell]]:
    """A product of two values an axis, and the presets that lie in it."""
    few = tuple(replace(axis, values=axis.values[:2]) for axis in AXES)
    monkeypatch.setattr(generate, "AXES", few)
    monkeypatch.setattr(verify, "AXES", few)
    feasible.cache_clear()
    yield [cell for cell in map(Cell.from_id, PRESETS) if all(v in a.names for v, a in zip(cell, few, strict=True))]
    feasible.cache_clear()


def test_pairs_are_completely_covered(small):
    cells = cover(2)
    assert uncovered(cells, 2) == []
    assert all(expect(cell) == "runs" for cell in cells)


def test_a_cover_is_the_same_each_time(small):
    assert cover(1) == cover(1) != []


def test_a_cover_grows_around_the_kept_cells(small):
    fresh = cover(2, small)
    assert uncovered([*small, *fresh], 2) == []
    assert not set(small) & set(fresh)
    assert len(fresh) < len(cover(2))


@pytest.mark.parametrize("text", PRESETS)
def test_a_preset_runs_and_is_written_as_its_id(text):
    cell = Cell.from_id(text)
    assert cell.id == text
    # A flat file runs as the one slot that it is rewritten to.
    assert expect(cell) == ("rewritten" if cell.adaptive == "flat" else "runs")


@pytest.mark.parametrize("incident", INCIDENTS)
def test_every_incident_has_presets(incident):
    assert any(note.startswith(incident) for note in PRESETS.values())


def test_a_preset_stands_under_one_stage():
    assert len(PRESETS) == sum(map(len, BY_STAGE.values()))


@pytest.mark.parametrize("constraint", negative_constraints(), ids=lambda c: c.name)
def test_negative_cells_trigger_exactly_their_constraint(constraint):
    cells = negatives(constraint, 4)
    assert cells and len(set(cells)) == len(cells)
    assert all(explain(cell) == (constraint,) for cell in cells)
    assert {expect(cell) for cell in cells} == {constraint.kind}


def test_all_refused_and_rewritten_constraints_are_tested():
    assert {c.kind for c in CONSTRAINTS if c not in negative_constraints()} == {"impossible", "redundant", "optional"}


@pytest.mark.parametrize(
    "text",
    [
        SWEEPS["pr"][0],
        *(pytest.param(text, marks=pytest.mark.nightly) for text in (*SWEEPS["pr"][1:], SWEEPS["nightly"][0])),
    ],
)
def test_a_sweep_holds_every_request_pair_on_one_start(text):
    start = Cell.from_id(text)
    cells = sweep(start)
    assert {cell.start_key for cell in cells} == {start.start_key}
    assert uncovered_sweep(start, cells) == []
    assert uncovered_sweep(start, cells[: len(cells) // 2]) != []
    assert len({tuple(axis for axis, _ in pair) for pair in uncovered_sweep(start, [])}) == 10, "pairs of five axes"
