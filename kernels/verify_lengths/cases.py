"""Cases of verify_lengths: (survivals, budget)."""

from __future__ import annotations

import torch
from torch import Generator

from specmatrix.kernels.case import Arguments, Case


def _rows(batch: int, drafts: int, budget: int, levels: int = 0) -> Case:
    """Survivals of random confidences, or of a few levels, where many are equal."""

    def make(g: Generator) -> Arguments:
        sure = torch.rand(batch, drafts, generator=g)
        if levels:
            sure = (sure * levels).round() / levels
        return sure.cumprod(1), torch.tensor([budget])

    return Case(f"{batch} x {drafts}, {budget}{f' of {levels} levels' if levels else ''}", make)


def _given(name: str, survivals: list[list[float]], budget: int) -> Case:
    return Case(name, lambda g: (torch.tensor(survivals), torch.tensor([budget])))


CASES = (
    _rows(0, 3, 2),
    _rows(1, 1, 0),
    _rows(1, 5, 3),
    _rows(5, 7, 0),
    _rows(5, 7, 9),
    _rows(5, 7, 100),
    _rows(48, 7, 150),
    *(_rows(9, 5, budget, 2) for budget in (1, 4, 11, 30)),
    _given("equal everywhere", [[1.0] * 3] * 4, 6),
    _given("nothing likely", [[1e-7, 0.0], [0.0, 0.0]], 3),
    _given("near the least", [[0.5, 1.1e-6, 9e-7], [0.25, 2e-6, 0.0]], 6),
)
