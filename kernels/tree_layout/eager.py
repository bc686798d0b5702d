"""tree_layout as one triangular solve.

With P[n, parent(n)] = 1 the ancestor matrix is I + P + P^2 + ... = (I - P)^-1. P is strictly lower triangular, and
forward substitution on zeros and ones is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tree_layout(parents: Tensor) -> tuple[Tensor, Tensor]:
    nodes = parents.shape[1]
    order = torch.arange(nodes, device=parents.device)
    identity = torch.eye(nodes, device=parents.device)
    system = identity - (parents[:, :, None] == order).float()
    above = torch.linalg.solve_triangular(system, identity.expand_as(system), upper=False, unitriangular=True)
    ancestors = above > 0.5
    return ancestors.sum(2) - 1, ancestors
