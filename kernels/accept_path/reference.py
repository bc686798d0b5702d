"""The reference of accept_path: walk down from the root, one matching child at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def accept_path(tokens: Tensor, parents: Tensor, emit: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """SGLang's greedy tree verification with `emit` in place of the argmax."""
    batch, nodes = tokens.shape
    path = torch.arange(depth + 1).repeat(batch, 1)
    count = torch.ones(batch, dtype=torch.int64)
    for b in range(batch):
        node = 0
        while count[b] <= depth:
            children = [n for n in range(nodes) if parents[b, n] == node]
            matching = [n for n in children if tokens[b, n] == emit[b, node]]
            if not matching:
                break
            node = matching[0]
            path[b, count[b]] = node
            count[b] += 1
        path[b, 0] = 0
    return path, count
