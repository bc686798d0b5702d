"""The search of tiles: which are tried. The search itself needs a GPU."""

from __future__ import annotations

import pytest

from specmatrix.benchmarks.shapes import SHAPES
from specmatrix.benchmarks.tune import BATCHES, candidates, projections
from specmatrix.kernels.fused_linear import tiles

PROCESSORS = 132


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("rows", BATCHES)
def test_tiles_that_are_tried_fill_every_multiprocessor_and_no_more(name, rows):
    assert BATCHES[rows] <= rows
    for one in projections(SHAPES[name], rows):
        # Each projection is one of a table's, so that what is found is used.
        card = next(card for card, rows in tiles.TILES.items() if one in rows)
        known = tiles.TILES[card][one]
        first, *found = candidates(one, [known], PROCESSORS)
        assert first == known and len(found) == len(set(found)) >= 10 and known not in found
        for each in found:
            count, memory = -(-one.columns // each.columns), each.memory(one.what == "gate_up", early=True)
            assert each.rows == rows and memory <= tiles.MEMORY[True]
            assert each.ranges == 1 or (count <= tiles.MAX_TILES and one.what != "gate_up")
            share = -(-count * each.ranges // PROCESSORS)
            assert share * (memory + 1024) <= 228 * 1024 < (share + 1) * (memory + 1024)
