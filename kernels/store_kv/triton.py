"""store_kv, one program per block of a token's row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.pdl import begin, launch

BLOCK = 1024


@triton.jit
def _store(rows, slots, kv, width, kv_stride, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    slot = tl.load(slots + token)
    tl.store(rows + slot * width + column, tl.load(kv + token * kv_stride + column, mask=inside), mask=inside)


def store_kv(rows: Tensor, slots: Tensor, kv: Tensor) -> None:
    preconditions.contiguous("store_kv", rows=rows, slots=slots)
    preconditions.dense("store_kv", kv=kv)
    tokens, width = kv.shape
    if tokens:
        block = min(BLOCK, triton.next_power_of_2(width))
        _store[tokens, triton.cdiv(width, block)](rows, slots, kv, width, kv.stride(0), BLOCK=block, **launch(kv))
