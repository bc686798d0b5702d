"""Cases of tree_layout: (parents,)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from specmatrix.kernels.case import Case


def random_parents(batch: int, nodes: int, g: Generator) -> Tensor:
    """Random trees: parents[:, 0] = -1, every other node has a random earlier parent."""
    limit = torch.arange(nodes).clamp(min=1).double()
    parents = (torch.rand(batch, nodes, generator=g, dtype=torch.float64) * limit).long()
    parents[:, 0] = -1
    return parents


def _trees(batch: int, nodes: int) -> Case:
    return Case(f"{batch} trees of {nodes}", lambda g: (random_parents(batch, nodes, g),))


SELECTED = torch.tensor([[-1, 0, 0, 1, 2, 3]])

CASES = (
    _trees(0, 4),
    _trees(1, 1),
    _trees(1, 2),
    _trees(3, 7),
    _trees(5, 64),
    Case("a chain", lambda g: (torch.arange(-1, 40)[None],)),
    Case("a star", lambda g: (torch.tensor([[-1] + [0] * 30]),)),
    Case("a worked example", lambda g: (SELECTED.clone(),)),
)
