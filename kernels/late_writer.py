"""A test kernel that lets its successor start at once and writes its output long after."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels.pdl import launch, signal, wait

# Number of sleeps, of up to a millisecond each, before the write.
TURNS = 4
BLOCK = 1024


@triton.jit
def _write(source, target, size, turns, BLOCK: tl.constexpr, PDL: tl.constexpr):
    signal(PDL)
    wait(PDL)
    spent = tl.zeros((1,), tl.int32)
    for _ in range(turns):
        spent = tl.inline_asm_elementwise(
            "nanosleep.u32 1000000; mov.u32 $0, $1;", "=r,r", [spent], dtype=tl.int32, is_pure=False, pack=1
        )
    shift = tl.sum(spent, 0)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(target + shift + at, tl.load(source + at, mask=at < size), mask=at < size)


def write_late(source: Tensor, target: Tensor) -> None:
    """Copy source to target, both uint8 [size], some milliseconds after the launch."""
    _write[(1,)](source, target, source.numel(), TURNS, BLOCK=BLOCK, num_warps=4, **launch(target))
