"""The references of uniform and draw, one row at a time."""

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
    """One row at a time, in a pass over its vocabulary."""
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


def _draw_row(logits: list[float], coin: float, heat: float, top_k: int, top_p: float) -> int:
    peak = max(logits)
    mass = [math.exp((x - peak) / heat) for x in logits]
    order = sorted(range(len(mass)), key=lambda i: (-mass[i], i))
    if top_k:
        order = order[:top_k]
    total = sum(mass[i] for i in order)
    kept: set[int] = set()
    reached = 0.0
    for i in order:
        if kept and reached >= top_p * total:
            break
        kept.add(i)
        reached += mass[i]
    left = coin * reached
    chosen = -1
    for i in sorted(kept):
        if mass[i] > 0:
            chosen = i
        left -= mass[i]
        if left < 0:
            break
    return chosen
