"""accept_path, one program per tree: a node is accepted if it and all its ancestors match."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specmatrix.kernels import preconditions


@triton.jit
def _accept(tokens, parents, emit, ancestors, path, count, nodes, places, BLOCK: tl.constexpr):
    tree = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, BLOCK)
    inside = node < nodes
    first = tree * nodes
    parent = tl.load(parents + first + node, mask=inside & (node > 0), other=0)
    token = tl.load(tokens + first + node, mask=inside, other=0)
    wanted = tl.load(emit + first + parent, mask=inside, other=0)
    miss = (token != wanted) & (node > 0) & inside
    above = tl.load(
        ancestors + (first + node[:, None]) * nodes + node[None, :], mask=inside[:, None] & inside[None, :], other=0
    )
    accepted = (tl.max(above.to(tl.int32) * miss[None, :].to(tl.int32), 1) == 0) & inside
    place = tl.cumsum(accepted.to(tl.int32), 0) - 1
    found = tl.sum(accepted.to(tl.int32), 0)
    row = path + tree * places
    # A parent's number is smaller than its child's, so the path is the accepted nodes in ascending order.
    tl.store(row + place, node.to(tl.int64), mask=accepted & (place < places))
    tl.store(row + node, node.to(tl.int64), mask=(node >= found) & (node < places))
    tl.store(count + tree, found.to(tl.int64))


def accept_path(tokens: Tensor, parents: Tensor, emit: Tensor, depth: int, ancestors: Tensor) -> tuple[Tensor, Tensor]:
    preconditions.contiguous("accept_path", tokens=tokens, parents=parents, emit=emit, ancestors=ancestors)
    batch, nodes = tokens.shape
    path = torch.empty(batch, depth + 1, dtype=torch.int64, device=tokens.device)
    count = torch.empty(batch, dtype=torch.int64, device=tokens.device)
    if batch:
        block = triton.next_power_of_2(nodes)
        seen = ancestors.view(torch.int8)
        given = (tokens, parents, emit, seen, path, count)
        _accept[(batch,)](*given, nodes, depth + 1, BLOCK=block)
    return path, count
