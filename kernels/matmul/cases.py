"""Cases of matmul: (x, weight), and accumulating: (x, weight, out, True)."""

from __future__ import annotations

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case


def _product(
    rows: int,
    depth: int,
    columns: int,
    dtype: torch.dtype = torch.float32,
    transposed: bool = False,
    added: bool = False,
    big: bool = False,
) -> Case:
    """transposed: the weight is the transpose of a contiguous matrix."""

    def make(g: Generator) -> Arguments:
        x = torch.randn(rows, depth, generator=g).to(dtype)
        if transposed:
            weight = torch.randn(columns, depth, generator=g).to(dtype).t()
        else:
            weight = torch.randn(depth, columns, generator=g).to(dtype)
        return (x, weight, torch.randn(rows, columns, generator=g).to(dtype), True) if added else (x, weight)

    name = f"{rows} x {depth} x {columns} {str(dtype).removeprefix('torch.')}{' transposed' if transposed else ''}"
    return Case(name, make, size="medium" if big else "small")


def _view(g: Generator) -> Arguments:
    return torch.randn(3, 50, generator=g)[:, 5:38], torch.randn(33, 9, generator=g)


def _far(transposed: bool) -> Case:
    """A mostly zero weight with more elements than int32 can index."""

    def make(g: Generator) -> Arguments:
        stored = torch.zeros(65600, 32768, dtype=BF16)
        stored[-300:] = torch.randn(300, 32768, generator=g).to(BF16)
        weight = stored.t() if transposed else stored
        return torch.randn(2, weight.shape[0], generator=g).to(BF16), weight

    return Case(f"a large weight{', transposed' if transposed else ''}", make, size="large")


def _several(matrices: int, rows: int, depth: int, columns: int, dtype: torch.dtype = torch.float32) -> Case:
    """x is the transpose of [rows, matrices, depth], as when rows are split into heads."""

    def make(g: Generator) -> Arguments:
        x = torch.randn(rows, matrices, depth, generator=g).to(dtype).transpose(0, 1)
        return x, torch.randn(matrices, depth, columns, generator=g).to(dtype)

    return Case(f"{matrices} of {rows} x {depth} x {columns} {str(dtype).removeprefix('torch.')}", make)


BF16 = torch.bfloat16
PLAIN_CASES = (
    _product(0, 8, 4),
    _product(1, 1, 1),
    _product(2, 33, 5),
    _product(17, 64, 40, transposed=True),
    _product(9, 40, 72, BF16),
    _product(150, 24, 40, BF16),
    _product(3, 130, 7, torch.float16, transposed=True),
    _product(5, 1100, 33, BF16),
    Case("strided rows", _view),
    _far(transposed=False),
    _far(transposed=True),
    _product(64, 1500, 130, big=True),
    _product(64, 4096, 1024, BF16, transposed=True, big=True),
    _product(64, 2085, 321, BF16, big=True),
    _product(300, 4096, 4128, BF16, transposed=True, big=True),
    _product(2100, 520, 4128, BF16, big=True),
    _product(100, 520, 6152, BF16, transposed=True, big=True),
    _product(70, 520, 4128, BF16, big=True),
)
SEVERAL_CASES = (
    _several(0, 1, 8, 4),
    _several(1, 1, 3, 5),
    _several(3, 5, 20, 33),
    _several(2, 17, 70, 40, BF16),
    _several(2, 3, 1100, 12, torch.float16),
)
ADDED_CASES = (
    _product(0, 8, 4, added=True),
    _product(1, 20, 6, added=True),
    _product(18, 72, 33, BF16, transposed=True, added=True),
    _product(4, 2000, 20, added=True),
    _product(40, 4096, 512, BF16, transposed=True, added=True, big=True),
)
