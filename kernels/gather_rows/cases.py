"""Cases of gather: (buffer, rows), and of scatter: (buffer, rows, values)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from specmatrix.kernels.case import Case

KINDS = ((torch.int64, ()), (torch.int64, (1,)), (torch.float32, (3, 7)), (torch.bfloat16, (1030,)))


def _values(shape: tuple[int, ...], dtype: torch.dtype, g: Generator) -> Tensor:
    drawn = torch.randint(-(2**40), 2**40, shape, generator=g)
    return drawn if dtype is torch.int64 else torch.randn(shape, generator=g).to(dtype)


def _case(rows: int, batch: int, dtype: torch.dtype, shape: tuple[int, ...], put: bool) -> Case:
    def make(g: Generator) -> tuple[Tensor, ...]:
        buffer = _values((rows, *shape), dtype, g)
        some = torch.randperm(rows, generator=g)[:batch]
        return (buffer, some, _values((batch, *shape), dtype, g)) if put else (buffer, some)

    return Case(f"{batch} of {rows} x {list(shape)} {str(dtype).removeprefix('torch.')}", make)


def _cases(put: bool) -> tuple[Case, ...]:
    counts = ((4, 0), (1, 1), (9, 5))
    return tuple(_case(rows, batch, *kind, put) for rows, batch in counts for kind in KINDS)


def _far(put: bool) -> Case:
    """More elements than int32 can index."""

    def make(g: Generator) -> tuple[Tensor, ...]:
        buffer = torch.zeros(2**20 + 3, 2056, dtype=torch.uint8)
        buffer[-9:] = torch.randint(256, (9, 2056), generator=g, dtype=torch.uint8)
        rows = torch.tensor([2**20 + 2, 4, 2**20 - 5])
        return (buffer, rows, 255 - buffer[rows]) if put else (buffer, rows)

    return Case("a large buffer", make, size="large")


GATHER_CASES = (*_cases(put=False), _far(put=False))
SCATTER_CASES = (*_cases(put=True), _far(put=True))
