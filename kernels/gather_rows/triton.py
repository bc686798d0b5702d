"""gather and scatter, one program per block of a row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions

BLOCK = 1024


@triton.jit
def _copy(buffer, rows, values, width, BLOCK: tl.constexpr, GATHER: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    there = buffer + tl.load(rows + place) * width + column
    here = values + place * width + column
    if GATHER:
        tl.store(here, tl.load(there, mask=inside), mask=inside)
    else:
        tl.store(there, tl.load(here, mask=inside), mask=inside)


def _run(buffer: Tensor, rows: Tensor, values: Tensor, gather: bool) -> None:
    if values.numel():
        width = values[0].numel()
        block = min(BLOCK, triton.next_power_of_2(width))
        grid = (len(rows), triton.cdiv(width, block))
        _copy[grid](buffer, rows, values, width, BLOCK=block, GATHER=gather)


def gather(buffer: Tensor, rows: Tensor) -> Tensor:
    preconditions.contiguous("gather", buffer=buffer, rows=rows)
    out = buffer.new_empty(len(rows), *buffer.shape[1:])
    _run(buffer, rows, out, gather=True)
    return out


def scatter(buffer: Tensor, rows: Tensor, values: Tensor) -> None:
    preconditions.contiguous("scatter", buffer=buffer, rows=rows, values=values)
    _run(buffer, rows, values, gather=False)
