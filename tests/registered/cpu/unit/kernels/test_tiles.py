"""Tiles of `fused_linear`: their shared memory, their ranges, and each tile of several rows on a case."""

from __future__ import annotations

import pytest

from specmatrix.kernels import check
from specmatrix.kernels.backend import check_interpreter, interpreted
from specmatrix.kernels.fused_linear import cases
from specmatrix.kernels.fused_linear import triton as fused_linear_triton
from specmatrix.kernels.fused_linear.triton import tile
from specmatrix.kernels.pdl import SHARED_MEMORY
from specmatrix.kernels.registry import KERNELS

check_interpreter()


@pytest.mark.parametrize("sizes", [(2048, 2048, False), (4096, 4096, False), (8192, 2048, True)])
def test_tiles_that_wait_alone_fit_into_shared_memory_once(sizes):
    columns, depth, gated = sizes
    found = tile(16, columns, depth, 2, gated, add=not gated, early=True)
    bytes_ = 2 * (found.stages - 1) * found.depth * (found.rows + found.columns * (2 if gated else 1))
    assert bytes_ <= SHARED_MEMORY and 2 * bytes_ > 227 * 1024


SIZES = ((2048, 2048), (4096, 4096), (8192, 2048), (14336, 4096), (6144, 4096), (3072, 2048), (2048, 8192))


@pytest.mark.parametrize("rows", [1, 16, 17, 33, 64])
@pytest.mark.parametrize(("gated", "add"), [(False, False), (False, True), (True, False)])
def test_the_order_of_sums_is_the_same_where_launches_begin_early(rows, gated, add):
    for columns, depth in SIZES:
        one, two = (tile(rows, columns, depth, 2, gated, add, early) for early in (False, True))
        assert one[:4] == two[:4]
        assert one.rows == {1: 16, 16: 16, 17: 32, 33: 64, 64: 64}[rows]


@pytest.mark.parametrize("rows", [17, 33, 64])
@pytest.mark.parametrize(("gated", "add"), [(False, False), (False, True), (True, False)])
def test_tiles_of_more_rows_fit_into_shared_memory_and_fill_a_gpu(rows, gated, add):
    for columns, depth in (*SIZES, (4096, 14336), (64, 64)):
        for early, limit in ((True, SHARED_MEMORY), (False, fused_linear_triton.SHARED_MEMORY_WITHOUT_PDL)):
            found = tile(rows, columns, depth, 2, gated, add, early)
            assert 2 * found.stages * found.depth * (found.rows + found.columns * (2 if gated else 1)) <= limit
            assert found.stages >= 2
            tiles, ranges = -(-columns // found.columns), found.ranges
            fills = tiles * ranges >= fused_linear_triton.PROGRAMS
            assert (ranges == 1) if gated else (fills or depth < 2 * ranges * fused_linear_triton.MIN_RANGE)
            assert ranges == 1 or tiles <= fused_linear_triton.TILES


def test_tiles_of_published_shapes_are_those_that_were_found():
    tall = fused_linear_triton.TALL
    assert tile(32, 6144, 4096, 2, False, False, early=True) == tall[32, "heads"].wide
    assert tile(48, 8192, 2048, 2, True, False, early=True) == tall[64, "gate_up"].narrow
    assert tile(48, 2048, 8192, 2, False, True, early=True) == tall[64, "down"].narrow._replace(ranges=2)
    assert tile(48, 4096, 14336, 2, False, True, early=True) == tall[64, "down"].wide._replace(ranges=2)
    assert tile(32, 14336, 4096, 2, True, False, early=False) == tall[32, "gate_up"].wide._replace(stages=2)


@pytest.mark.nightly
def test_every_tile_of_more_rows_has_a_case():
    reached = set()
    for case in (*cases.CASES, *cases.NEXT_NORM_CASES):
        x, _, out, _, _, _, _, add, gated, *_ = case.arguments()
        if out.numel():
            reached.add(tile(*out.shape, x.shape[1], x.element_size(), gated, add, early=True)._replace(ranges=1))
    assert {one for tiles in fused_linear_triton.TALL.values() for one in tiles} <= reached


# What is projected, the operation, and its case: with all that stands around such a projection in a layer.
PLACES = {
    "heads": ("fused_linear", "20 x 70 x 84 bfloat16 rotation"),
    "attended": ("fused_linear before a norm", "19 x 64 x 70 bfloat16 add"),
    "gate_up": ("fused_linear", "18 x 130 x 70 float16 normed gated"),
    "down": ("fused_linear", "23 x 1030 x 70 bfloat16 add"),
}
# Sums of gates are not cut into ranges of K.
TILES = [
    pytest.param(what, one._replace(ranges=ranges), id=f"{what} {one.rows}x{one.columns}x{one.depth} in {ranges}")
    for (_, what), tiles in fused_linear_triton.TALL.items()
    for one in dict.fromkeys(each._replace(late=False) for each in tiles)
    for ranges in ((1,) if what == "gate_up" else (1, 2))
]


@pytest.mark.parametrize(("what", "found"), TILES)
def test_a_tile_of_more_rows_gives_the_definition(monkeypatch, what, found):
    """In Triton's interpreter, on small cases; alone they are too narrow for most."""
    name, of = PLACES[what]
    kernel = next(kernel for kernel in KERNELS if kernel.name == name)
    case = next(case for case in kernel.cases if case.name == of)
    monkeypatch.setattr(fused_linear_triton, "tile", lambda *_: found)
    with interpreted():
        check.at_once(kernel, case)
