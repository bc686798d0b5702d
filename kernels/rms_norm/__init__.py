"""RMS norm of rows, or of groups within them."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight (arXiv 1910.07467) for each of G groups of a row -> [M, G * width].

    x [M, G * width] and out, of the same shape and dtype, may have any row stride, and out may be x; weight [G, width],
    with G = 1 for a norm of the whole row and G = number of heads for a norm per head. Sums are float32, in an order
    that depends on the width alone. KernelError on other shapes.
    """
    if weight.dim() != 2:
        raise preconditions.shape_error("rms_norm", "weight", weight, ("G", "width"))
    if x.dim() != 2 or x.shape[1] != weight.numel():
        raise preconditions.shape_error("rms_norm", "x", x, ("M", weight.numel()))
    if out is not None and out.shape != x.shape:
        raise preconditions.shape_error("rms_norm", "out", out, tuple(x.shape))
    if on_triton(x):
        return triton_module(__name__).rms_norm(x, weight, eps, out)
    wide = x.float().unflatten(1, weight.shape)
    normed = wide * torch.rsqrt(wide.square().mean(-1, True) + eps) * weight.float()
    result = normed.flatten(1).to(x.dtype)
    return result if out is None else out.copy_(result)
