"""rotary, one program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.pdl import begin, launch

BLOCK = 1024


@triton.jit
def _rotate(rows, rotation, stride, pairs, size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    pair = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < size
    at = rows + row * stride + 2 * pair
    by = rotation + (row * pairs + pair % pairs) * 2
    x, y = tl.load(at, mask=inside).to(tl.float32), tl.load(at + 1, mask=inside).to(tl.float32)
    cosine, sine = tl.load(by, mask=inside), tl.load(by + 1, mask=inside)
    tl.store(at, x * cosine - y * sine, mask=inside)
    tl.store(at + 1, x * sine + y * cosine, mask=inside)


def rotary(rows: Tensor, rotation: Tensor, heads: int) -> None:
    preconditions.dense("rotary", rows=rows)
    preconditions.contiguous("rotary", rotation=rotation)
    count, pairs = rotation.shape
    size = heads * pairs
    if count and size:
        block = min(BLOCK, triton.next_power_of_2(size))
        parts = torch.view_as_real(rotation)
        grid = (count, triton.cdiv(size, block))
        _rotate[grid](rows, parts, rows.stride(0), pairs, size, BLOCK=block, **launch(rows))
