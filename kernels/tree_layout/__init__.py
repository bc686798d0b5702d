"""Depth and ancestors of each draft tree node."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.errors import KernelError
from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import select_backend
from specmatrix.kernels.tree_layout import eager


def tree_layout(parents: Tensor, checked: bool = False) -> tuple[Tensor, Tensor]:
    """parents int64 [B, N], parents[:, 0] = -1, else 0 <= parents[:, n] < n.

    -> depths int64 [B, N], 0 for the root; ancestors bool [B, N, N]: [b, n, m] is true if m is n or its ancestor.
    KernelError on another shape; with `checked` also on a parent that does not precede its child.
    """
    if parents.dim() != 2 or parents.shape[1] == 0:
        raise preconditions.shape_error("tree_layout", "parents", parents, ("B", "N >= 1"))
    if checked:
        preconditions.dtype("tree_layout", (torch.int64,), parents=parents)
        order = torch.arange(parents.shape[1], device=parents.device)
        if not bool(((parents < order) & ((parents >= 0) | (order == 0)) & ((parents == -1) | (order > 0))).all()):
            raise KernelError("tree_layout: parents must be -1 for node 0 and an earlier node for every other")
    return select_backend(eager, parents).tree_layout(parents)
