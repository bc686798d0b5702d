"""Cases of uniform (seed, position), draw (logits, coins, temperature, top_k, top_p), and probabilities (the same
without coins).
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from specmatrix.kernels.case import Case

EXTREMES = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63)])


def _coins(batch: int, width: int) -> Case:
    def make(g: Generator) -> tuple[Tensor, ...]:
        seed = torch.randint(-(2**62), 2**62, (batch,), generator=g)
        return seed, torch.randint(2**40, (batch, width), generator=g)

    return Case(f"{batch} x {width}", make)


def _draws(batch: int, width: int, vocab: int, big: bool = False) -> Case:
    """Rows that cycle through greedy, unrestricted, top-k, top-p, and both."""

    def make(g: Generator) -> tuple[Tensor, ...]:
        kind = torch.arange(batch) % 5
        top_k = torch.where((kind == 2) | (kind == 4), 1 + vocab // 3, 0)
        top_p = torch.where(kind >= 3, 0.7, 1.0)
        temperature = torch.where(kind == 0, 0.0, 0.6 + 0.1 * kind)
        logits = torch.randn(batch, width, vocab, generator=g) * 3
        return logits, torch.rand(batch, width, dtype=torch.float64, generator=g), temperature, top_k, top_p

    return Case(f"{batch} x {width} of {vocab}", make, size="medium" if big else "small")


def _edge_coins(g: Generator) -> tuple[Tensor, ...]:
    """Coins at both ends and near boundaries, over masses that are exact binary fractions."""
    logits = torch.log2(torch.tensor([0.25, 0.0, 0.5, 0.25, 0.0])) * torch.log(torch.tensor(2.0))
    coins = torch.tensor([[0.0, 0.26, 0.74, 0.76, 1 - 2.0**-53]], dtype=torch.float64)
    one = torch.ones(1)
    return logits.expand(1, 5, 5).contiguous(), coins, one, torch.zeros(1, dtype=torch.int64), one


def _ties(g: Generator) -> tuple[Tensor, ...]:
    """Equal logits: argmax and top-k take the lower ids."""
    logits = torch.zeros(3, 2, 6)
    coins = torch.tensor([[0.1, 0.9]] * 3, dtype=torch.float64)
    return logits, coins, torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 2, 6]), torch.tensor([1.0, 1.0, 0.4])


def _least(g: Generator) -> tuple[Tensor, ...]:
    """A tiny top-p keeps only the likeliest token; one just below 1 keeps nearly all."""
    coins = torch.tensor([[0.0], [0.999], [0.5]], dtype=torch.float64)
    some = torch.tensor([0, 0, 4])
    return torch.randn(3, 1, 9, generator=g), coins, torch.ones(3), some, torch.tensor([1e-9, 0.9999, 1e-9])


def _extreme(g: Generator) -> tuple[Tensor, ...]:
    """The lowest temperatures choose among equal best tokens, the highest among all tokens that top-k and top-p
    keep.
    """
    logits = 2000 - 3 * torch.rand(8, 3, 11, generator=g)
    logits[:, :, 7] = logits[:, :, 4] = 2000
    heat = torch.tensor([2.0**-126, 3e-38, 1e-20, 2.0**126]).repeat(2)
    top_k, top_p = torch.tensor([0] * 4 + [2**63 - 1, 9, 1, 5]), torch.tensor([1.0] * 4 + [2.0**-126, 0.6, 0.5, 0.7])
    return logits, torch.rand(8, 3, dtype=torch.float64, generator=g), heat, top_k, top_p


def _both(g: Generator) -> tuple[Tensor, ...]:
    """Half of the mass that top-k keeps is one token; half of the full mass would be two."""
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log().expand(1, 2, 4).contiguous()
    return logits, torch.tensor([[0.05, 0.95]]).double(), torch.ones(1), torch.tensor([2]), torch.tensor([0.5])


UNIFORM_CASES = (
    _coins(0, 3),
    _coins(1, 1),
    _coins(5, 7),
    Case("extremes", lambda g: (EXTREMES, EXTREMES.clamp(min=0).expand(5, 5).contiguous())),
)
DRAW_CASES = (
    _draws(0, 2, 5),
    _draws(1, 1, 1),
    _draws(5, 1, 11),
    _draws(5, 3, 11, big=True),
    _draws(5, 1, 301),
    _draws(10, 4, 301, big=True),
    _draws(10, 2, 5003, big=True),
    Case("no top-p left", _least),
    Case("top-p of what top-k kept", _both),
    Case("edge coins", _edge_coins),
    Case("extreme temperatures", _extreme),
    Case("ties", _ties),
)


def _coinless(case: Case) -> Case:
    def make(g: Generator) -> tuple[Tensor, ...]:
        logits, _, *more = case.make(g)
        return logits, *more

    return Case(case.name, make)


PROBABILITY_CASES = tuple(_coinless(case) for case in DRAW_CASES if case.size == "small")
