"""Cases of reject_drafts: (p, q, drafts, coins, last, block)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from specmatrix.kernels.case import Arguments, Case
from specmatrix.kernels.sample import choose

NEARLY_ONE = 1 - 2.0**-53


def _coins(g: Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=g)


def _chains(batch: int, steps: int, vocab: int, block: bool, near: float = 0.6) -> Case:
    """Chains drawn from q at a given distance from p; every third row of p and of q is a point mass."""

    def make(g: Generator) -> Arguments:
        p = torch.randn(batch, steps + 1, vocab, generator=g) * 2
        q = near * p[:, :-1] + torch.randn(batch, steps, vocab, generator=g)
        p, q = p.softmax(2), q.softmax(2)
        point = torch.eye(vocab)[torch.randint(vocab, (batch, steps + 1), generator=g)]
        third = (torch.arange(batch) % 3 == 2)[:, None, None]
        p, q = torch.where(third, point, p), torch.where(third, point[:, :-1].roll(1, 0), q)
        drafts = choose(q, _coins(g, batch, steps))
        return p, q, drafts, _coins(g, batch, steps), _coins(g, batch, steps + 1), block

    return Case(f"{batch} x {steps} of {vocab}, {'block' if block else 'token'}", make)


def _edge(name: str, p: list[list[float]], q: list[list[float]], drafts: list[int], coin: float, block: bool) -> Case:
    """One request with equal coins; every residual is drawn at 1 / 2."""

    def make(g: Generator) -> Arguments:
        coins = torch.full((1, len(drafts)), coin, dtype=torch.float64)
        last = torch.full((1, len(p)), 0.5, dtype=torch.float64)
        return torch.tensor([p]), torch.tensor([q]), torch.tensor([drafts]), coins, last, block

    return Case(f"{name}, {'block' if block else 'token'}", make)


def _edges(block: bool) -> tuple[Case, ...]:
    half, other = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]
    bad, inf = float("nan"), float("inf")
    return (
        _edge("p = q and the highest coin", [half, half, other], [half, half], [0, 1], NEARLY_ONE, block),
        _edge("p = q and the lowest coin", [half, half, other], [half, half], [0, 1], 0.0, block),
        _edge("the lowest coin and no mass", [[0.0, 1.0, 0.0], half], [half], [0], 0.0, block),
        _edge("a q that drew nothing", [half, other], [[0.0, 0.5, 0.5]], [0], 0.0, block),
        _edge(
            "a q that is no distribution", [half, other, half], [[bad, -1.0, inf], [2.0, bad, 0.0]], [0, 0], 0.1, block
        ),
        _edge("a ratio above 1 and one below", [half, other, half], [other, half], [0, 0], 0.6, block),
        _edge("a residual of one token", [half, [0.0, 0.0, 1.0]], [other], [1], 0.9, block),
    )


CASES = (
    *(_chains(0, 2, 5, block) for block in (False, True)),
    *(
        _chains(batch, steps, vocab, block)
        for block in (False, True)
        for batch, steps, vocab in ((1, 1, 3), (40, 4, 7), (24, 7, 11))
    ),
    *(_chains(30, 3, 5, block, near=1.0) for block in (False, True)),
    *_edges(False),
    *_edges(True),
)
