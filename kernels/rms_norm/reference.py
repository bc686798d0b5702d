"""The reference of rms_norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """One group at a time, in float64."""
    groups, width = weight.shape
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    for m in range(len(x)):
        for g in range(groups):
            part = slice(g * width, (g + 1) * width)
            row = x[m, part].double()
            length = math.sqrt(float((row * row).mean()) + eps)
            result[m, part] = (row / length * weight[g].double()).to(x.dtype)
    return result if out is None else out.copy_(result)
