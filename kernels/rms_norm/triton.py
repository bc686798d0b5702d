"""rms_norm, one program per group of a row, so that the summation order does not depend on the other rows."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.pdl import begin, launch

# Elements of a row per warp.
PER_WARP = 512


@triton.jit
def _norm(
    x, weight, out, x_m, out_m, width, eps, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < width
    column += group * width
    h = tl.load(x + row * x_m + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(h * h, 0) / width + eps)
    tl.store(out + row * out_m + column, h / length * scale, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None) -> Tensor:
    preconditions.contiguous("rms_norm", weight=weight)
    if out is None:
        out = x.new_empty(x.shape)
    preconditions.dense("rms_norm", x=x, out=out)
    groups, width = weight.shape
    if out.numel():
        block = triton.next_power_of_2(width)
        warps = min(16, max(1, block // PER_WARP))
        _norm[len(x), groups](
            x, weight, out, x.stride(0), out.stride(0), width, eps, BLOCK=block, num_warps=warps, **launch(x)
        )  # fmt: skip
    return out
