"""Tiles of `fused_linear`: their table, the rule for sizes that it lacks, and each tile on a case."""

from __future__ import annotations

import pytest

from specmatrix.kernels import check
from specmatrix.kernels.backend import check_interpreter, interpreted
from specmatrix.kernels.fused_linear import PART, tiles
from specmatrix.kernels.fused_linear import triton as fused_linear_triton
from specmatrix.kernels.registry import KERNELS

check_interpreter()

SIZES = (
    *((2048, 2048), (4096, 4096), (2048, 8192), (4096, 14336), (4096, 6144), (2048, 3072), (8192, 2048)),
    *((14336, 4096), (64, 64), (5120, 27648)),
)
CARDS = (*tiles.TILES, "an untuned card")


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("rows", [1, 16, 17, 33, 64, 65])
@pytest.mark.parametrize(("gated", "add"), [(False, False), (False, True), (True, False)])
def test_tiles_fit_into_shared_memory_and_early_launches_change_no_order_of_sums(card, rows, gated, add):
    for depth, columns in SIZES:
        one = tiles.projection(rows, depth, columns, gated, add)
        sides = {early: tiles.tile(one, card, early) for early in (True, False)}
        assert sides[True][:4] == sides[False][:4]
        for early, found in sides.items():
            assert found.memory(gated, early) <= tiles.MEMORY[early] and found.stages >= 2
            assert found.rows == {1: 16, 16: 16, 17: 32, 33: 64, 64: 64, 65: 128}[rows] and found.columns % PART == 0
            count = -(-columns // found.columns)
            assert found.ranges == 1 or (count <= tiles.MAX_TILES and not gated)


def test_a_size_of_the_table_has_its_tile_and_another_the_nearest_ones_in_as_many_ranges_as_fill_a_gpu():
    known = tiles.TILES[tiles.USUAL]
    for one, found in known.items():
        assert tiles.tile(one, tiles.USUAL, early=True) == tiles.tile(one, "unknown", early=True) == found
    near = tiles.projection(9, 13824, 5120, gated=False, add=True)
    usual = known[tiles.projection(9, 14336, 4096, gated=False, add=True)]
    assert near.what == "down" and tiles.tile(near, tiles.USUAL, early=True)[:3] == usual[:3]
    narrow = tiles.projection(9, 14336, 512, gated=False, add=True)
    found = tiles.tile(narrow, tiles.USUAL, early=True)
    assert 512 // found.columns * found.ranges >= tiles.PROGRAMS


def test_the_table_is_read_as_it_is_written(tmp_path, monkeypatch):
    whole = tiles.FILE.read_text(encoding="utf-8")
    monkeypatch.setattr(tiles, "FILE", tmp_path / "tiles.json")
    tiles.write(tiles.TILES)
    assert tiles.read() == tiles.TILES and tiles.FILE.read_text(encoding="utf-8") == whole


# What is projected, the operation, and its case: with all that stands around such a projection in a layer.
PLACES = {
    "heads": ("fused_linear", "20 x 70 x 84 bfloat16 rotation"),
    "attended": ("fused_linear before a norm", "19 x 64 x 70 bfloat16 add"),
    "gate_up": ("fused_linear", "18 x 130 x 70 float16 normed gated"),
    "down": ("fused_linear", "23 x 1030 x 70 bfloat16 add"),
}
EVERY = dict.fromkeys(
    (one.what, found._replace(warps=4, stages=3, late=False, ranges=ranges))
    for rows in tiles.TILES.values()
    for one, found in rows.items()
    for ranges in {1, found.ranges}
    if one.rows > 16
)


@pytest.mark.parametrize(("what", "found"), [pytest.param(*one, id=f"{one[0]} {one[1][:4]}") for one in EVERY])
def test_a_tile_of_more_rows_gives_the_definition(monkeypatch, what, found):
    """In Triton's interpreter, which has no warps and stages, on small cases."""
    name, of = PLACES[what]
    kernel = next(kernel for kernel in KERNELS if kernel.name == name)
    case = next(case for case in kernel.cases if case.name == of)
    monkeypatch.setattr(fused_linear_triton, "chosen", lambda *_: found)
    with interpreted():
        check.at_once(kernel, case)
