import ast
import random
from collections.abc import Iterator
from itertools import chain, islice, product
from pathlib import Path

import pytest

from specmatrix.matrix.cells.axes import AXES, NAMES, axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS, explain
from specmatrix.matrix.cells.enumerate import starts
from specmatrix.matrix.cover import lockfile
from specmatrix.matrix.cover import verify as verifier
from specmatrix.matrix.cover.verify import PIVOTS, allowed, components, covered, feasible, uncovered

EVERY = list(product(*(axis(name).names for name in PIVOTS)))


@pytest.fixture(scope="module")
def enumerated() -> list[Cell]:
    """Every 211th cell of engine starts with some values of the pivots, and all locked cells."""
    chosen = random.Random(5).sample(EVERY, 8)
    cells = list(islice(chain.from_iterable(with_pivots(values) for values in chosen), 0, None, 211))
    return [*cells, *(cell for cell in lockfile.read().upto("nightly") if explain(cell) == ())]


def with_pivots(values: tuple[str, ...], some: int | None = None) -> Iterator[Cell]:
    """The enumerated cells with these values of the pivots, all or those of `some` engine starts."""
    wanted = [(NAMES.index(name), value) for name, value in zip(PIVOTS, values, strict=True)]
    found = starts(CONSTRAINTS, lambda prefix: all(prefix[c] == value for c, value in wanted if c < len(prefix)))
    cells = (start + tail for start, tails in islice(found, some) for tail in tails)
    return (Cell(*cell) for cell in cells if all(cell[column] == value for column, value in wanted))


def test_it_shares_no_code_with_the_generator():
    tree = ast.parse(Path(verifier.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {f"specmatrix.matrix.cells.{name}" for name in ("axes", "cell", "constraints")}
    assert modules <= own | {"collections.abc", "functools", "itertools", "typing"}


def test_components_partition_the_axes_and_hold_every_constraint():
    groups = components()
    assert sorted((*PIVOTS, *(name for group in groups for name in group))) == sorted(NAMES)
    assert all(any(set(constraint.axes) <= {*group, *PIVOTS} for group in groups) for constraint in CONSTRAINTS)


# Every 89th combination: each value of each pivot, and each pair of them, is among these.
@pytest.mark.parametrize("pivots", EVERY[::89], ids="-".join)
def test_components_are_independent_beside_values_of_the_pivots(pivots):
    source = random.Random(3)
    rows = {group: allowed(group, pivots) for group in components()}
    if not all(rows.values()):
        assert list(islice(with_pivots(pivots, 1000), 1)) == []
        return
    for _ in range(100):
        parts = [source.choice(choices) for choices in rows.values()]
        cell = Cell(**{name: value for part in parts for name, value in part.items()})
        assert explain(cell) == () and tuple(cell.values[name] for name in PIVOTS) == pivots


def test_feasible_combinations_are_those_of_the_enumerated_cells(enumerated):
    assert covered(enumerated, 2) == feasible(2) and uncovered(enumerated, 2) == []
    without = [cell for cell in enumerated if not (cell.topk == "4" and cell.page_size == "64")]
    assert (("topk", "4"), ("page_size", "64")) in uncovered(without, 2)
    for pair in ((("algorithm", "none"), ("steps", "3")), (("slots", "4"), ("batch", "single"))):
        assert tuple(sorted(pair, key=lambda part: NAMES.index(part[0]))) not in feasible(2)


def test_cells_that_do_not_run_cover_nothing():
    refused = Cell.from_id("none.s3.p64")
    assert explain(refused) and uncovered([refused], 1) == sorted(feasible(1))
    # All single values are feasible but one that is always rewritten.
    assert feasible(1) == {((axis.name, name),) for axis in AXES for name in axis.names} - {(("adaptive", "flat"),)}
