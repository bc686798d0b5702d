"""Sets of cells as bits against a count cell by cell."""

import random
from collections import defaultdict
from itertools import combinations

import pytest

from specmatrix.reports.compare.carried import CarriedPairs


def cells(count, seed=0):
    """Cells of which some lack an axis."""
    draw = random.Random(seed)
    axes = {"topk": "1248", "page": "16", "version": "12", "batch": "abc"}
    rows = ({axis: draw.choice(values) for axis, values in axes.items()} for _ in range(count))
    return {f"c{index}": {a: v for a, v in row.items() if draw.random() < 0.9} for index, row in enumerate(rows)}


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 200])
def test_pairs_and_their_cells_are_those_of_a_count_by_cell(count):
    given = cells(count)
    expected = defaultdict(list)
    for cell, values in given.items():
        for pair in combinations(sorted(values.items()), 2):
            expected[pair].append(cell)
    carried = CarriedPairs(given)
    assert carried.pairs() == expected.keys()
    assert {pair: carried.cells(pair) for pair in carried.pairs()} == expected


def test_a_pair_that_no_cell_carries_is_unknown():
    with pytest.raises(KeyError):
        CarriedPairs({"c": {"a": "1", "b": "2"}}).cells((("a", "1"), ("b", "3")))
