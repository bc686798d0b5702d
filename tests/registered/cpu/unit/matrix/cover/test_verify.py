import ast
import random
from itertools import combinations, product
from pathlib import Path

import pytest

from specmatrix.matrix.cells.axes import AXES, NAMES, axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS, explain
from specmatrix.matrix.cells.enumerate import starts
from specmatrix.matrix.cover import verify as verifier
from specmatrix.matrix.cover.verify import PIVOTS, Combination, allowed, components, covered, feasible, uncovered


def holding(pair: Combination) -> Cell | None:
    """The first cell of the enumeration that holds a pair of values."""
    wanted = [(NAMES.index(name), value) for name, value in pair]
    found = starts(CONSTRAINTS, lambda prefix: all(prefix[c] == value for c, value in wanted if c < len(prefix)))
    cells = (start + tail for start, tails in found for tail in tails)
    return next((Cell(*cell) for cell in cells if all(cell[c] == value for c, value in wanted)), None)


@pytest.fixture(scope="module")
def covering() -> list[Cell]:
    """Cells that hold every pair among a tenth of the engine starts with every 211th request each, and one for each
    pair that must be somewhere else."""
    source = random.Random(5)
    seen: set[object] = set()
    chosen = []
    for start, tails in starts(CONSTRAINTS):
        if not tails or source.random() < 0.9:
            continue
        for tail in tails[source.randrange(min(211, len(tails))) :: 211]:
            pairs = set(combinations(zip(NAMES, start + tail, strict=True), 2))
            if not pairs <= seen:
                seen |= pairs
                chosen.append(Cell(*start, *tail))
    return [*chosen, *filter(None, map(holding, feasible(2) - seen))]


def test_it_shares_no_code_with_the_generator():
    tree = ast.parse(Path(verifier.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {f"specmatrix.matrix.cells.{name}" for name in ("axes", "cell", "constraints")}
    assert modules <= own | {"collections.abc", "functools", "itertools", "typing"}


def test_components_partition_the_axes_and_hold_every_constraint():
    groups = components()
    assert sorted((*PIVOTS, *(name for group in groups for name in group))) == sorted(NAMES)
    assert all(any(set(constraint.axes) <= {*group, *PIVOTS} for group in groups) for constraint in CONSTRAINTS)


# Every 17th combination: each value of each pivot, and each pair of them, is among these.
@pytest.mark.parametrize("pivots", list(product(*(axis(name).names for name in PIVOTS)))[::17], ids="-".join)
def test_components_are_independent_beside_values_of_the_pivots(pivots):
    source = random.Random(3)
    rows = {group: allowed(group, pivots) for group in components()}
    possible = holding(tuple(zip(PIVOTS, pivots, strict=True))) is not None
    assert all(rows.values()) == possible
    for _ in range(100 if possible else 0):
        parts = [source.choice(choices) for choices in rows.values()]
        cell = Cell(**{name: value for part in parts for name, value in part.items()})
        assert explain(cell) == () and tuple(cell.values[name] for name in PIVOTS) == pivots


def test_feasible_combinations_are_those_of_the_enumerated_cells(covering):
    assert covered(covering, 2) == feasible(2) and uncovered(covering, 2) == []
    without = [cell for cell in covering if not (cell.topk == "4" and cell.page_size == "64")]
    assert (("topk", "4"), ("page_size", "64")) in uncovered(without, 2)
    for pair in ((("algorithm", "none"), ("steps", "3")), (("slots", "4"), ("batch", "single"))):
        assert tuple(sorted(pair, key=lambda part: NAMES.index(part[0]))) not in feasible(2)


def test_cells_that_do_not_run_cover_nothing():
    refused = Cell.from_id("none.s3.p64")
    assert explain(refused) and uncovered([refused], 1) == sorted(feasible(1))
    # All single values are feasible but one that is always rewritten.
    assert feasible(1) == {((axis.name, name),) for axis in AXES for name in axis.names} - {(("adaptive", "flat"),)}
