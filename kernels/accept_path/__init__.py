"""Acceptance of draft tree nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.errors import KernelError
from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module
from specmatrix.kernels.tree_layout import tree_layout


def accept_path(
    tokens: Tensor, parents: Tensor, emit: Tensor, depth: int, ancestors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sample-then-match verification of N nodes per request, node 0 the root.

    tokens int64 [B, N]; parents int64 [B, N], parents[:, 0] = -1, else parents[:, n] < n; emit int64 [B, N]: the token
    that the target produces after each node. A node is accepted if its parent is and emit[parent] is its token;
    siblings are distinct, so the accepted nodes form one path. depth: longest path below the root, at most N - 1.
    ancestors bool [B, N, N] as returned by `tree_layout`, computed here if None.
    -> path int64 [B, depth + 1], accepted nodes in order, then their own column numbers (so that copying slots along
    the path leaves the rest in place); count int64 [B], accepted nodes including the root, 1..depth + 1.
    KernelError on other shapes or depth.
    """
    if tokens.shape != parents.shape or emit.shape != parents.shape:
        raise preconditions.shape_error("accept_path", "emit", emit, tuple(parents.shape))
    if not 0 <= depth < tokens.shape[1]:
        raise KernelError(f"accept_path: depth must be between 0 and {tokens.shape[1] - 1}, got {depth}")
    if ancestors is None:
        _, ancestors = tree_layout(parents)
    if on_triton(tokens):
        return triton_module(__name__).accept_path(tokens, parents, emit, depth, ancestors)
    nodes = tokens.shape[1]
    order = torch.arange(nodes, device=tokens.device)
    miss = (tokens != emit.gather(1, parents.clamp(min=0))) & (order > 0)
    accepted = ~(ancestors & miss[:, None]).any(2)
    count = accepted.sum(1)
    # A parent's number is smaller than its child's, so the path is the accepted nodes in ascending order.
    path = torch.where(accepted, order, nodes).sort(1).values[:, : depth + 1]
    order = order[: depth + 1]
    return torch.where(order < count[:, None], path, order), count
