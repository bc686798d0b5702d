"""uniform, draw and probabilities, vectorised."""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(word: int) -> int:
    """A 64-bit constant as the int64 with the same bits."""
    return word - (1 << 64) if word >> 63 else word


GOLDEN = _signed(0x9E3779B97F4A7C15)
FIRST = _signed(0xBF58476D1CE4E5B9)
SECOND = _signed(0x94D049BB133111EB)


def _shift(word: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's is arithmetic on int64."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def _mix(word: Tensor) -> Tensor:
    """splitmix64's finaliser; int64 products wrap."""
    word = (word ^ _shift(word, 30)) * FIRST
    word = (word ^ _shift(word, 27)) * SECOND
    return word ^ _shift(word, 31)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    state = _mix(seed + GOLDEN)[:, None] + (position + 1) * GOLDEN
    return _shift(_mix(state), 11).double() * 2.0**-53


def draw(logits: Tensor, coins: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, truncate: bool) -> Tensor:
    token = choose(_masses(logits, temperature, top_k, top_p, truncate), coins)
    return torch.where((temperature <= 0)[:, None], logits.argmax(-1), token)


def probabilities(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    masses = _masses(logits, temperature, top_k, top_p, True)
    point = torch.zeros_like(masses).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.where((temperature <= 0)[:, None, None], point, masses / masses.sum(-1, keepdim=True))


def choose(masses: Tensor, coins: Tensor) -> Tensor:
    level = masses.cumsum(-1, dtype=torch.float64)
    total = level[..., -1:].contiguous()
    token = torch.searchsorted(level, coins[..., None] * total, right=True)
    # If rounding lifts the target to the total, choose the last token with mass. NaN sorts after every total.
    last = torch.searchsorted(level, total).clamp_(max=masses.shape[-1] - 1)
    return torch.minimum(token, last)[..., 0]


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
