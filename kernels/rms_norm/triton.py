"""rms_norm, one program per row: its sum has one order, whatever the other rows."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels import contract

# Numbers of a row for each warp of its program.
PER_WARP = 512


@triton.jit
def _norm(x, weight, residual, out, x_stride, groups, width, eps, BLOCK: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    h = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        at = residual + row * width + column
        rounded = (tl.load(at, mask=inside, other=0.0).to(tl.float32) + h).to(residual.dtype.element_ty)
        tl.store(at, rounded, mask=inside)
        h = rounded.to(tl.float32)
    length = tl.sqrt(tl.sum(h * h, 0) / width + eps)
    scale = tl.load(weight + (row % groups) * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, h / length * scale, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> Tensor:
    contract.dense("rms_norm", x=x)
    contract.contiguous("rms_norm", weight=weight, residual=weight if residual is None else residual)
    rows, width = x.shape
    out = x.new_empty(rows, width)
    if rows:
        block = triton.next_power_of_2(width)
        _norm[(rows,)](
            x,
            weight,
            x if residual is None else residual,
            out,
            x.stride(0),
            weight.shape[0],
            width,
            eps,
            BLOCK=block,
            ADD=residual is not None,
            num_warps=min(16, max(1, block // PER_WARP)),
        )
    return out
