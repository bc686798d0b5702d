"""Cases of expand_topk: (scores, probs)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from specmatrix.kernels.case import Case


def _beams(batch: int, beams: int, topk: int) -> Case:
    def make(g: Generator) -> tuple[Tensor, ...]:
        probs = torch.rand(batch, beams, topk, generator=g).sort(-1, descending=True).values
        return torch.rand(batch, beams, generator=g), probs / topk

    return Case(f"{batch} x {beams} beams of {topk}", make)


def _ties(g: Generator) -> tuple[Tensor, ...]:
    """Only four distinct values, so that many scores are equal; one beam has score 0."""
    scores = torch.tensor([[0.5, 0.25, 0.5, 0.0]])
    return scores, torch.tensor([0.5, 0.25, 0.125, 0.125]).expand(1, 4, 4).contiguous()


CASES = (
    _beams(0, 3, 3),
    _beams(1, 1, 1),
    _beams(1, 1, 5),
    _beams(3, 4, 4),
    _beams(9, 8, 8),
    Case("ties", _ties),
    Case("worked step 1", lambda g: (torch.tensor([[0.6, 0.29]]), torch.tensor([[[0.5, 0.3], [0.9, 0.05]]]))),
)
