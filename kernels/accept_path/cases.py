"""Cases of accept_path: (tokens, parents, emit, depth)."""

from __future__ import annotations

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case
from specmatrix.kernels.tree_layout.cases import SELECTED, random_parents
from specmatrix.kernels.tree_layout.reference import tree_layout


def _trees(batch: int, nodes: int, agree: float) -> Case:
    """Random trees of distinct tokens in which each node's emitted token is a child's with probability `agree`."""

    def make(g: Generator) -> Arguments:
        parents = random_parents(batch, nodes, g)
        tokens = (
            torch.stack([torch.randperm(10 * nodes, generator=g)[:nodes] for _ in range(batch)]) if batch else parents
        )
        emit = torch.full((batch, nodes), -7)
        for b in range(batch):
            for node in range(nodes - 1, 0, -1):
                if float(torch.rand((), generator=g)) < agree:
                    emit[b, parents[b, node]] = tokens[b, node]
        depth = int(tree_layout(parents)[0].max()) if batch else nodes - 1
        return tokens, parents, emit, depth

    return Case(f"{batch} trees of {nodes}, agreeing {agree}", make)


def _worked(g: Generator) -> Arguments:
    """Greedy: B after the root, E after B, X after E; nodes root A B C E G."""
    tokens = torch.tensor([[0, 1, 2, 3, 4, 5]])
    return tokens, SELECTED.clone(), torch.tensor([[2, 9, 4, 9, 8, 9]]), 3


CASES = (
    _trees(0, 4, 0.5),
    _trees(1, 1, 0.5),
    _trees(1, 2, 1.0),
    _trees(4, 6, 0.0),
    _trees(7, 9, 0.5),
    _trees(5, 33, 0.9),
    _trees(3, 64, 1.0),
    Case("a worked example", _worked),
)
