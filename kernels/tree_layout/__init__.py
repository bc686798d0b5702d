"""Depth and ancestors of each draft tree node."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module


def tree_layout(parents: Tensor) -> tuple[Tensor, Tensor]:
    """parents int64 [B, N], parents[:, 0] = -1, else 0 <= parents[:, n] < n.

    -> depths int64 [B, N], 0 for the root; ancestors bool [B, N, N]: [b, n, m] is true if m is n or its ancestor.
    KernelError on another shape.
    """
    if parents.dim() != 2 or parents.shape[1] == 0:
        raise preconditions.shape_error("tree_layout", "parents", parents, ("B", "N >= 1"))
    if on_triton(parents):
        return triton_module(__name__).tree_layout(parents)
    # With P[n, parent(n)] = 1 the ancestor matrix is I + P + P^2 + ... = (I - P)^-1. P is strictly lower triangular,
    # and forward substitution on zeros and ones is exact.
    nodes = parents.shape[1]
    order = torch.arange(nodes, device=parents.device)
    identity = torch.eye(nodes, device=parents.device)
    system = identity - (parents[:, :, None] == order).float()
    above = torch.linalg.solve_triangular(system, identity.expand_as(system), upper=False, unitriangular=True)
    ancestors = above > 0.5
    return ancestors.sum(2) - 1, ancestors
