"""A batch-invariant matrix product."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.errors import KernelError
from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module


def matmul(x: Tensor, weight: Tensor, out: Tensor | None = None, add: bool = False) -> Tensor:
    """x [M, K] @ weight [K, N] -> [M, N] of x's dtype, into `out` if given; with `add`, out += x @ weight.

    Batched: x [H, M, K], weight [H, K, N] -> [H, M, N].

    weight is contiguous, or the transpose of a contiguous [N, K]; x and out may have any row stride. Sums are float32
    and rounded once, with `add` after the addition. On CUDA the summation order depends on K, N and the dtype alone, so
    a row has the same bits for every M and whatever the other rows.
    KernelError on other shapes.
    """
    several = tuple(x.shape[:-2])
    if x.dim() not in (2, 3):
        raise preconditions.shape_error("matmul", "x", x, ("M", "K"))
    if weight.dim() != x.dim() or weight.shape[:-1] != (*several, x.shape[-1]):
        raise preconditions.shape_error("matmul", "weight", weight, (*several, x.shape[-1], "N"))
    if out is not None and out.shape != (*x.shape[:-1], weight.shape[-1]):
        raise preconditions.shape_error("matmul", "out", out, (*x.shape[:-1], weight.shape[-1]))
    if add and out is None:
        raise KernelError("matmul: add=True requires out")
    if on_triton(x):
        return triton_module(__name__).matmul(x, weight, out, add)
    if add and out is not None:
        return out.addmm_(x, weight) if x.dim() == 2 else out.baddbmm_(x, weight)
    return torch.mm(x, weight, out=out) if x.dim() == 2 else torch.bmm(x, weight, out=out)
