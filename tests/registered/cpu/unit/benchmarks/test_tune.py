"""The search of tiles: which are tried. The search itself needs a GPU."""

from __future__ import annotations

import pytest

from specmatrix.benchmarks.shapes import SHAPES
from specmatrix.benchmarks.tune import BATCHES, TRIES, drawn, projections
from specmatrix.kernels.fused_linear import tiles


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("rows", BATCHES)
def test_tiles_that_are_tried_fit_and_are_the_same_every_time(name, rows):
    assert BATCHES[rows] <= rows
    for one in projections(SHAPES[name], rows):
        # Each projection is one of a table's, so that what is found is used.
        card = next(card for card, rows in tiles.TILES.items() if one in rows)
        known = tiles.TILES[card][one]
        found = drawn(one, [known])
        assert found[0] == known and len(found) in (TRIES, TRIES + 1) and found == drawn(one, [known])
        for each in found:
            count = -(-one.columns // each.columns)
            assert each.rows == rows and each.memory(one.what == "gate_up", early=True) <= tiles.MEMORY[True]
            assert each.ranges == 1 or (count <= tiles.MAX_TILES and one.what != "gate_up")
