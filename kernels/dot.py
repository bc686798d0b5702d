"""The tile product shared by the Triton kernels."""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels.backend import INTERPRETER


def wide(operand: Tensor) -> bool:
    """Whether operands must be widened first: Triton's interpreter treats bfloat16 bit patterns as integers."""
    return operand.dtype is torch.bfloat16 and os.environ.get(INTERPRETER) == "1"


@triton.jit
def dot(a, b, WIDE: tl.constexpr):
    """a @ b, accumulated in float32; neither operand is rounded to a lower precision (no TF32)."""
    if WIDE:
        out = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif a.dtype == tl.float32:
        out = tl.dot(a, b, input_precision="ieee")
    else:
        out = tl.dot(a, b)
    return out
