"""The reference of fused_linear."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.kernels.fused_linear import PART
from specmatrix.kernels.matmul.reference import wide_product
from specmatrix.kernels.rotary.reference import rotary
from specmatrix.kernels.silu_mul.reference import silu_mul


def fused_linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    sums: Tensor | None = None,
    eps: float = 0.0,
    rotation: Tensor | None = None,
    heads: int = 0,
    add: bool = False,
    gated: bool = False,
    scale: Tensor | None = None,
    scaled: Tensor | None = None,
    partial_sumsq: Tensor | None = None,
) -> Tensor:
    """In float64, rounded where the unfused operations round."""
    product = wide_product(x, weight)
    if sums is not None:
        product /= (sums.double().sum(1, keepdim=True) / x.shape[1] + eps).sqrt()
    if gated:
        out.copy_(silu_mul(product.to(x.dtype)))
    else:
        out.copy_(torch.add(out, product) if add else product)
    if rotation is not None:
        rotary(out, rotation, heads)
    if scale is not None and scaled is not None and partial_sumsq is not None:
        scaled.copy_(out.double() * scale.double())
        for part in range(partial_sumsq.shape[1]):
            partial_sumsq[:, part] = out[:, part * PART : (part + 1) * PART].double().square().sum(1)
    return out


def chained(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    scale: Tensor,
    scaled: Tensor,
    partial_sumsq: Tensor,
    behind: Tensor,
    last: Tensor,
    eps: float,
) -> Tensor:
    """A projection, a norm, and the projection after it."""
    fused_linear(x, weight, out, scale=scale, scaled=scaled, partial_sumsq=partial_sumsq)
    return fused_linear(scaled, behind, last, partial_sumsq, eps)
