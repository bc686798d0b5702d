"""Depth and ancestors of each draft tree node."""

from __future__ import annotations

from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import select_backend
from specmatrix.kernels.tree_layout import eager


def tree_layout(parents: Tensor) -> tuple[Tensor, Tensor]:
    """parents int64 [B, N], parents[:, 0] = -1, else 0 <= parents[:, n] < n.

    -> depths int64 [B, N], 0 for the root; ancestors bool [B, N, N]: [b, n, m] is true if m is n or its ancestor.
    KernelError on another shape.
    """
    if parents.dim() != 2 or parents.shape[1] == 0:
        raise preconditions.shape_error("tree_layout", "parents", parents, ("B", "N >= 1"))
    return select_backend(eager, parents).tree_layout(parents)
