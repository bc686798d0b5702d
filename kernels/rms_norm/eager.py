"""rms_norm in torch calls."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> Tensor:
    h = x if residual is None else residual.add_(x)
    wide = h.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, True) + eps)
    grouped = normed.view(-1, *weight.shape) * weight.float()
    return grouped.view(h.shape).to(x.dtype)
