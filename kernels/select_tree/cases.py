"""Cases of select_tree: (scores, parent_list, nodes, topk)."""

from __future__ import annotations

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case
from specmatrix.kernels.expand_topk.reference import expand_topk


def _grown(batch: int, steps: int, topk: int, nodes: int, ties: bool = False) -> Case:
    """The candidates of a full random drafting round; with `ties` every probability is 0.5 or 1."""

    def make(g: Generator) -> Arguments:
        def probabilities(beams: int) -> torch.Tensor:
            drawn = torch.rand(batch, beams, topk, generator=g)
            return ((drawn > 0.5).float() + 1) / 2 if ties else drawn / topk

        live = probabilities(1)[:, 0]
        scores = [live]
        parents = [torch.arange(-1, topk).repeat(batch, 1)]
        for step in range(steps - 1):
            grown, live, chosen = expand_topk(live, probabilities(topk))
            scores.append(grown)
            parents.append(chosen + topk + step * topk * topk)
        return torch.cat(scores, 1), torch.cat(parents[: max(1, steps - 1)], 1), nodes, topk

    return Case(f"{batch} rounds, {steps} steps of {topk}, {nodes} nodes{', ties' if ties else ''}", make)


def _worked(g: Generator) -> Arguments:
    """k = 2, three steps: A B, their children C D E F, the children G H I J of C and E; A B C E G are selected."""
    scores = [0.6, 0.29, 0.30, 0.18, 0.261, 0.0145, 0.24, 0.03, 0.1305, 0.1044]
    return torch.tensor([scores]), torch.tensor([[-1, 0, 1, 2, 4]]), 6, 2


CASES = (
    _grown(0, 2, 2, 3),
    _grown(1, 1, 1, 2),
    _grown(1, 1, 8, 4),
    _grown(3, 2, 3, 13),
    _grown(4, 3, 2, 6),
    _grown(2, 5, 4, 8),
    _grown(7, 7, 8, 64),
    _grown(5, 4, 3, 9, ties=True),
    Case("a worked example", _worked),
)
