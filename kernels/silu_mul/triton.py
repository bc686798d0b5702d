"""silu_mul, one program per block of a row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.pdl import begin, launch

BLOCK = 1024


@triton.jit
def _gate(gate_up, out, stride, inner, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inner
    at = gate_up + row * stride + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + inner, mask=inside, other=0.0).to(tl.float32)
    # The exponential of a negative number cannot overflow.
    fall = tl.exp(-tl.abs(gate))
    share = tl.where(gate >= 0, 1.0, fall) / (1.0 + fall)
    tl.store(out + row * inner + column, gate * share * up, mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    preconditions.dense("silu_mul", gate_up=gate_up)
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, inner)
    if out.numel():
        block = min(BLOCK, triton.next_power_of_2(inner))
        _gate[rows, triton.cdiv(inner, block)](gate_up, out, gate_up.stride(0), inner, BLOCK=block, **launch(gate_up))
    return out
