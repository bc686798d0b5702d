"""compact_kv as a gather into a buffer and a scatter from it, as no program may overwrite a slot not read yet."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions

BLOCK = 1024


@triton.jit
def _copy(data, buffer, slots, moved, length, width, BLOCK: tl.constexpr, GATHER: tl.constexpr):
    """Copy slots of data [L, length, width] to or from buffer [L, moved, width], one layer per program."""
    item, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    there = data + (layer * length + tl.load(slots + item)) * width + column
    here = buffer + (layer * moved + item) * width + column
    if GATHER:
        tl.store(here, tl.load(there, mask=inside), mask=inside)
    else:
        tl.store(there, tl.load(here, mask=inside), mask=inside)


def compact_kv(data: Tensor, source: Tensor, target: Tensor) -> None:
    preconditions.contiguous("compact_kv", data=data, source=source, target=target)
    layers, length = data.shape[:2]
    moved = source.shape[0]
    if not moved or not layers:
        return
    width = data[0, 0].numel()
    block = min(BLOCK, triton.next_power_of_2(width))
    grid = (moved, layers, triton.cdiv(width, block))
    buffer = data.new_empty(layers, moved, width)
    _copy[grid](data, buffer, source, moved, length, width, BLOCK=block, GATHER=True)
    _copy[grid](data, buffer, target, moved, length, width, BLOCK=block, GATHER=False)
