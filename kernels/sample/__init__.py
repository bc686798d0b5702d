"""Counter-based random numbers ("coins"), and sampling of one token per row with them."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import select_backend
from specmatrix.kernels.sample import eager

__all__ = ["choose", "draw", "probabilities", "uniform"]


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """A coin per (seed, position): float64 in [0, 1) with position's shape, bitwise identical on every device.

    seed int64 [B], position int64 [B, W]. splitmix64 (Steele, Lea and Flood, OOPSLA 2014), keyed by the seed.
    """
    if position.dim() != 2:
        raise preconditions.shape_error("uniform", "position", position, ("B", "W"))
    if seed.shape != position.shape[:1]:
        raise preconditions.shape_error("uniform", "seed", seed, tuple(position.shape[:1]))
    preconditions.dtype("uniform", (torch.int64,), seed=seed, position=position)
    return select_backend(eager, position).uniform(seed, position)


def draw(
    logits: Tensor, coins: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, truncate: bool = True
) -> Tensor:
    """Sample one token per row -> int64 [B, W].

    logits float [B, W, V], coins float64 [B, W]; temperature and top_p float32 [B], top_k int64 [B] (0 = all tokens).
    temperature is 0 or in [2**-126, 2**126], where division is accurate to a few ulp.
    temperature 0: argmax, the first on ties. Else p = softmax(logits / temperature); keep the top_k likeliest (lower id
    first on ties), renormalise; keep the shortest prefix of these, likeliest first, that reaches top_p; the token is
    the first in vocabulary order whose cumulative mass exceeds coin * total mass. It is below V, even for NaN logits.
    truncate=False asserts that every top_k is 0 and every top_p is 1, and skips the truncation.
    """
    if logits.dim() != 3 or coins.shape != logits.shape[:2]:
        raise preconditions.shape_error("draw", "coins", coins, tuple(logits.shape[:2]))
    for name, row in (("temperature", temperature), ("top_k", top_k), ("top_p", top_p)):
        if row.shape != logits.shape[:1]:
            raise preconditions.shape_error("draw", name, row, tuple(logits.shape[:1]))
    return select_backend(eager, logits).draw(logits, coins, temperature, top_k, top_p, truncate)


def probabilities(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The distribution of `draw` with the same arguments -> float32 [B, W, V]: rows sum to 1, greedy ones are 1 at the
    argmax. Torch operations without host synchronisation, so that CUDA graphs can capture them."""
    for name, row in (("temperature", temperature), ("top_k", top_k), ("top_p", top_p)):
        if row.shape != logits.shape[:1]:
            raise preconditions.shape_error("probabilities", name, row, tuple(logits.shape[:1]))
    return eager.probabilities(logits, temperature, top_k, top_p)


def choose(masses: Tensor, coins: Tensor) -> Tensor:
    """The first token of each row whose cumulative mass exceeds coin * total mass -> int64 [B, W].

    masses float [B, W, V], at least 0; coins float64 [B, W]. A row without mass gives token 0.
    """
    if coins.shape != masses.shape[:2]:
        raise preconditions.shape_error("choose", "coins", coins, tuple(masses.shape[:2]))
    return eager.choose(masses, coins)
