"""The definition of rms_norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """One row after the other, in float64."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for m in range(len(x)):
        h = x[m]
        if residual is not None:
            h = (residual[m].double() + h.double()).to(x.dtype)
            residual[m] = h
        row = h.double()
        length = math.sqrt(float((row * row).mean()) + eps)
        out[m] = (row / length * weight[m % len(weight)].double()).to(x.dtype)
    return out
