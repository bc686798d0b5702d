"""References of uniform, draw and probabilities, one row at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

WORD = (1 << 64) - 1


def _mix(word: int) -> int:
    """splitmix64's finaliser."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """The 53 high bits of output number `position` of the splitmix64 stream started by the seed."""
    golden = 0x9E3779B97F4A7C15
    rows = [
        [(_mix((_mix((s + golden) & WORD) + (p + 1) * golden) & WORD) >> 11) / 2**53 for p in row]
        for s, row in zip(seed.tolist(), position.tolist(), strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64).view(position.shape)


def draw(logits: Tensor, coins: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """One pass over the vocabulary per row."""
    batch, width, _ = logits.shape
    out = torch.empty(batch, width, dtype=torch.int64)
    for b in range(batch):
        for w in range(width):
            row = logits[b, w].tolist()
            heat = float(temperature[b])
            if heat <= 0:
                out[b, w] = row.index(max(row))
            else:
                out[b, w] = _draw_row(row, float(coins[b, w]), heat, int(top_k[b]), float(top_p[b]))
    return out


def probabilities(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """One row at a time."""
    out = torch.zeros(logits.shape)
    for b, rows in enumerate(logits.tolist()):
        for w, row in enumerate(rows):
            heat = float(temperature[b])
            kept = {row.index(max(row)): 1.0} if heat <= 0 else _kept(row, heat, int(top_k[b]), float(top_p[b]))
            for token, mass in kept.items():
                out[b, w, token] = mass / sum(kept.values())
    return out


def _draw_row(logits: list[float], coin: float, heat: float, top_k: int, top_p: float) -> int:
    kept = _kept(logits, heat, top_k, top_p)
    left = coin * sum(kept.values())
    chosen = -1
    for i in sorted(kept):
        if kept[i] > 0:
            chosen = i
        left -= kept[i]
        if left < 0:
            break
    return chosen


def _kept(logits: list[float], heat: float, top_k: int, top_p: float) -> dict[int, float]:
    """Masses kept by top_k and top_p, likeliest first."""
    peak = max(logits)
    mass = [math.exp((x - peak) / heat) for x in logits]
    order = sorted(range(len(mass)), key=lambda i: (-mass[i], i))
    if top_k:
        order = order[:top_k]
    total = sum(mass[i] for i in order)
    kept: dict[int, float] = {}
    for i in order:
        if kept and sum(kept.values()) >= top_p * total:
            break
        kept[i] = mass[i]
    return kept
