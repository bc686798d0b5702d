"""Counter-based random numbers ("coins"), and sampling of one token per row with them."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import on_triton, triton_module

__all__ = ["choose", "draw", "probabilities", "uniform"]


def _signed(word: int) -> int:
    """A 64-bit constant as the int64 with the same bits."""
    return word - (1 << 64) if word >> 63 else word


GOLDEN = _signed(0x9E3779B97F4A7C15)
FIRST = _signed(0xBF58476D1CE4E5B9)
SECOND = _signed(0x94D049BB133111EB)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """A coin per (seed, position): float64 in [0, 1) with position's shape, bitwise identical on every device.

    seed int64 [B], position int64 [B, W]. splitmix64 (Steele, Lea and Flood, OOPSLA 2014), keyed by the seed.
    """
    if position.dim() != 2:
        raise preconditions.shape_error("uniform", "position", position, ("B", "W"))
    preconditions.shapes("uniform", seed=(seed, position.shape[:1]))
    preconditions.dtype("uniform", (torch.int64,), seed=seed, position=position)
    if on_triton(position):
        return triton_module(__name__).uniform(seed, position)
    state = _mix(seed + GOLDEN)[:, None] + (position + 1) * GOLDEN
    return _shift(_mix(state), 11).double() * 2.0**-53


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
    batch = logits.shape[:1]
    preconditions.shapes("draw", temperature=(temperature, batch), top_k=(top_k, batch), top_p=(top_p, batch))
    if on_triton(logits):
        return triton_module(__name__).draw(logits, coins, temperature, top_k, top_p, truncate)
    token = choose(_masses(logits, temperature, top_k, top_p, truncate), coins)
    return torch.where((temperature <= 0)[:, None], logits.argmax(-1), token)


def probabilities(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The distribution of `draw` with the same arguments -> float32 [B, W, V]: rows sum to 1, greedy ones are 1 at the
    argmax. Torch operations without host synchronisation, so that CUDA graphs can capture them."""
    batch = logits.shape[:1]
    preconditions.shapes("probabilities", temperature=(temperature, batch), top_k=(top_k, batch), top_p=(top_p, batch))
    masses = _masses(logits, temperature, top_k, top_p, True)
    point = torch.zeros_like(masses).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.where((temperature <= 0)[:, None, None], point, masses / masses.sum(-1, keepdim=True))


def choose(masses: Tensor, coins: Tensor) -> Tensor:
    """The first token of each row whose cumulative mass exceeds coin * total mass -> int64 [B, W].

    masses float [B, W, V], at least 0; coins float64 [B, W]. A row without mass gives token 0.
    """
    preconditions.shapes("choose", coins=(coins, masses.shape[:2]))
    level = masses.cumsum(-1, dtype=torch.float64)
    total = level[..., -1:].contiguous()
    token = torch.searchsorted(level, coins[..., None] * total, right=True)
    # If rounding lifts the target to the total, choose the last token with mass. NaN sorts after every total.
    last = torch.searchsorted(level, total).clamp_(max=masses.shape[-1] - 1)
    return torch.minimum(token, last)[..., 0]


def _shift(word: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's is arithmetic on int64."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def _mix(word: Tensor) -> Tensor:
    """splitmix64's finaliser; int64 products wrap."""
    word = (word ^ _shift(word, 30)) * FIRST
    word = (word ^ _shift(word, 27)) * SECOND
    return word ^ _shift(word, 31)


def _masses(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, truncate: bool) -> Tensor:
    """softmax(logits / temperature) with zeros outside top_k and top_p; greedy rows use temperature 1."""
    heat = temperature.masked_fill(temperature <= 0, 1.0)[:, None, None]
    logits = logits.float()
    # Subtract the peak first: dividing it by a small temperature could overflow and make every mass NaN.
    mass = torch.softmax((logits - logits.amax(-1, keepdim=True)).div_(heat), -1)
    return _truncated(mass, top_k, top_p) if truncate else mass


def _truncated(mass: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """mass [B, W, V] with zeros outside top_k and top_p, not renormalised."""
    ranked, order = mass.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(mass.shape[-1], device=mass.device)
    kept = torch.where(top_k > 0, top_k, mass.shape[-1])[:, None, None]
    ranked = ranked.masked_fill_(rank >= kept, 0.0)
    level = ranked.cumsum(-1, dtype=torch.float64)
    before = level - ranked
    # The likeliest token always stays.
    beyond = (before >= top_p[:, None, None].double() * level[..., -1:]) & (rank > 0)
    return torch.zeros_like(mass).scatter_(-1, order, ranked.masked_fill_(beyond, 0.0))
