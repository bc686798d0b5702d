"""The reference of tree_layout: follow each node's parents up to the root."""

from __future__ import annotations

import torch
from torch import Tensor


def tree_layout(parents: Tensor) -> tuple[Tensor, Tensor]:
    batch, nodes = parents.shape
    depths = torch.zeros(batch, nodes, dtype=torch.int64)
    ancestors = torch.zeros(batch, nodes, nodes, dtype=torch.bool)
    for b in range(batch):
        for n in range(nodes):
            above = n
            ancestors[b, n, n] = True
            while parents[b, above] >= 0:
                above = int(parents[b, above])
                ancestors[b, n, above] = True
                depths[b, n] += 1
    return depths, ancestors
