"""Selection of a drafting round's best candidates as tree nodes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from specmatrix.errors import KernelError
from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module


def select_tree(scores: Tensor, parent_list: Tensor, nodes: int, topk: int) -> tuple[Tensor, Tensor]:
    """The nodes - 1 best candidates in ascending order, below a root.

    scores float32 [B, P]: candidates 0..k-1 are the root's children, k + (i-1) * k^2 + beam * k + rank the children of
    step i's beams, P = k + (S-1) * k^2. parent_list int64 [B, >= k * (S-1) + 1]: [-1, 0, .., k-1], then the candidate
    ids of the beams chosen in each step but the last two; the parent of candidate s is parent_list[s // k], -1 for the
    root. Ties go to the lower id. A child never scores above its parent and has a larger id, so a selected child's
    parent is always selected.
    -> ids int64 [B, nodes - 1] ascending; parents int64 [B, nodes] in node numbers: node 0 is the root with parent -1,
    node n >= 1 is ids[:, n - 1].
    KernelError on other shapes or too few candidates.
    """
    batch, pool = scores.shape
    if parent_list.shape[0] != batch or (parent_list.shape[1] - 1) * topk + topk < pool:
        raise preconditions.shape_error("select_tree", "parent_list", parent_list, (batch, f">= {-(-pool // topk)}"))
    if not 2 <= nodes <= pool + 1:
        raise KernelError(
            f"select_tree: nodes must be between 2 and {pool + 1}, a root and {pool} candidates, got {nodes}"
        )
    if on_triton(scores):
        return triton_module(__name__).select_tree(scores, parent_list, nodes, topk)
    ranked = scores.argsort(dim=1, descending=True, stable=True)
    ids = ranked[:, : nodes - 1].sort(1).values
    above = parent_list.gather(1, ids // topk)
    # With -1 prepended for the root, a parent's index among the selected ids is its node number.
    numbered = torch.searchsorted(pad(ids, (1, 0), value=-1), above)
    return ids, pad(numbered, (1, 0), value=-1)
