"""tree_layout, one program per tree, in which every node follows its parents up to the root."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions


@triton.jit
def _climb(parents, depths, ancestors, nodes, BLOCK: tl.constexpr):
    tree = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, BLOCK)
    inside = node < nodes
    above = node.to(tl.int64)
    depth = tl.zeros((BLOCK,), tl.int64)
    seen = node[:, None] == node[None, :]
    for _ in range(1, nodes):
        above = tl.load(parents + tree * nodes + above, mask=inside & (above >= 0), other=-1)
        seen = seen | (above[:, None] == node[None, :])
        depth += (above >= 0).to(tl.int64)
    tl.store(depths + tree * nodes + node, depth, mask=inside)
    at = ancestors + (tree * nodes + node[:, None]) * nodes + node[None, :]
    tl.store(at, seen.to(tl.int8), mask=inside[:, None] & inside[None, :])


def tree_layout(parents: Tensor) -> tuple[Tensor, Tensor]:
    preconditions.contiguous("tree_layout", parents=parents)
    batch, nodes = parents.shape
    depths = torch.empty_like(parents)
    ancestors = torch.empty(batch, nodes, nodes, dtype=torch.bool, device=parents.device)
    if batch:
        block = triton.next_power_of_2(nodes)
        _climb[(batch,)](parents, depths, ancestors.view(torch.int8), nodes, BLOCK=block)
    return depths, ancestors
